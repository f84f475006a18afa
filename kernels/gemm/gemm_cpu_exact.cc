// Each element is the exact sum of its exact products, its bias and its old value, rounded once.
//
// A product of two f32 is exact in f64. Products are added by two-sum (Ogita, Rump, Oishi,
// "Accurate sum and dot product", SIAM J. Sci. Comput. 26, 2005): the rounded sum in hi, the sum of
// its rounding errors, itself rounded, in lo. hi + lo lies within (K u)^2 sum |a||b|, u = 2^-53, of
// the exact sum. Where that interval rounds to one number, that is the result; where it does not,
// at ties and under heavy cancellation, the element is summed again in a long accumulator
// (kernels/gemm/exact_sum.h).
//
// A thread owns tiles of 2 rows by a panel of columns. Ten operations for each product limit it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm/gemm_cpu_exact.cc"
#include "core/simd/targets.h"
// The order matters: foreach_target re-includes this file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "core/parallel.h"
#include "kernels/gemm/exact_sum.h"
#include "kernels/gemm/f64_panels.h"
#include "kernels/gemm/gemm_batch.h"
#include "kernels/gemm/tf32_operand.h"

#ifndef WEFT_KERNELS_GEMM_CPU_EXACT_TILE
#define WEFT_KERNELS_GEMM_CPU_EXACT_TILE
namespace weft::kernels {
namespace {

constexpr int64_t kTileRows = 2;

/// Sums of a tile; of each product, hi + lo and the sum of magnitudes.
struct Tile {
  double hi[kTileRows][kPanelColumns];
  double lo[kTileRows][kPanelColumns];
  double magnitude[kTileRows][kPanelColumns];
};

}  // namespace
}  // namespace weft::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

/// One row of A against a vector of columns: the state of a two-sum.
template <class D>
struct Column {
  using V = hn::Vec<D>;
  V hi, lo, magnitude;

  explicit Column(D d) : hi(hn::Zero(d)), lo(hn::Zero(d)), magnitude(hn::Zero(d)) {}
  HWY_INLINE void add(V a, V b) {
    const V product = hn::Mul(a, b);
    const V sum = hn::Add(hi, product);
    const V part = hn::Sub(sum, hi);
    const V error = hn::Add(hn::Sub(hi, hn::Sub(sum, part)), hn::Sub(product, part));
    hi = sum;
    lo = hn::Add(lo, error);
    magnitude = hn::Add(magnitude, hn::Abs(product));
  }
};

void sum_tile(const double* row0, const double* row1, const double* panel, int64_t k, Tile& tile) {
  const hn::CappedTag<double, 8> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t j = 0; j < kPanelColumns; j += lanes) {
    Column<decltype(d)> first(d), second(d);
    for (int64_t i = 0; i < k; ++i) {
      const auto b = hn::LoadU(d, panel + i * kPanelColumns + j);
      first.add(hn::Set(d, row0[i]), b);
      second.add(hn::Set(d, row1[i]), b);
    }
    hn::StoreU(first.hi, d, tile.hi[0] + j);
    hn::StoreU(first.lo, d, tile.lo[0] + j);
    hn::StoreU(first.magnitude, d, tile.magnitude[0] + j);
    hn::StoreU(second.hi, d, tile.hi[1] + j);
    hn::StoreU(second.lo, d, tile.lo[1] + j);
    hn::StoreU(second.magnitude, d, tile.magnitude[1] + j);
  }
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(sum_tile);

namespace {

/// What an element is the sum of.
struct Terms {
  const double* row;    // of A
  const double* panel;  // column of B, kPanelColumns apart
  int64_t k;
  double bias, old;  // or 0

  double summed_again(DType dtype) const {
    ExactSum sum;
    for (int64_t i = 0; i < k; ++i) sum.add(row[i] * panel[i * kPanelColumns]);
    sum.add(bias);
    sum.add(old);
    return sum.rounded(dtype);
  }
  /// For infinities and NaNs, which any order of summation treats alike.
  double summed_plainly(DType dtype) const {
    double sum = bias + old;
    for (int64_t i = 0; i < k; ++i) sum += row[i] * panel[i * kPanelColumns];
    return round_once(sum, dtype);
  }
};

double finish(const Terms& terms, double hi, double lo, double magnitude, DType dtype) {
  for (double more : {terms.bias, terms.old}) {
    const TwoSum sum(hi, more);
    hi = sum.s;
    lo += sum.t;
    magnitude += std::abs(more);
  }
  if (!std::isfinite(magnitude)) return terms.summed_plainly(dtype);
  const double n = static_cast<double>(terms.k) + 4;
  const double error = n * n * 0x1p-104 * magnitude;
  const TwoSum value(hi, lo);
  const TwoSum below(value.s, value.t - error), above(value.s, value.t + error);
  const double low = round_once(round_to_odd(below.s, below.t), dtype);
  const double high = round_once(round_to_odd(above.s, above.t), dtype);
  return low == high ? low : terms.summed_again(dtype);
}

void multiply(const GemmProduct& p) {
  const auto& [a, b, c, scale, bias, accumulate] = p;
  const F64Rows rows = widen_rows(a, scale);
  const F64Panels panels = widen_panels(b);
  const int64_t k = a.cols, row_tiles = (c.rows + kTileRows - 1) / kTileRows;
  const int64_t grain = std::max<int64_t>(1, 65536 / (kTileRows * kPanelColumns * (k + 1)));
  parallel_for(panel_count(c.cols) * row_tiles, grain, [&](int64_t begin, int64_t end) {
    Tile tile;
    float out[kTileRows][kPanelColumns], old[kTileRows][kPanelColumns] = {};
    for (int64_t task = begin; task < end; ++task) {
      const int64_t j0 = task / row_tiles * kPanelColumns, i0 = task % row_tiles * kTileRows;
      const int64_t columns = std::min(kPanelColumns, c.cols - j0);
      const int64_t count = std::min(kTileRows, c.rows - i0);
      const double* const panel = panels.panel(task / row_tiles);
      HWY_DYNAMIC_DISPATCH(sum_tile)
      (rows.row(i0), rows.row(std::min(i0 + 1, c.rows - 1)), panel, k, tile);
      const Matrix target = c.block(i0, count, j0, columns);
      if (accumulate) {
        copy_matrix(target, {DType::f32, old, count, columns, kPanelColumns, 1});
      }
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
          const Terms terms{rows.row(i0 + i), panel + j, k, bias ? bias[j0 + j] : 0.0, old[i][j]};
          out[i][j] = static_cast<float>(
              finish(terms, tile.hi[i][j], tile.lo[i][j], tile.magnitude[i][j], c.dtype));
        }
      }
      copy_matrix({DType::f32, out, count, columns, kPanelColumns, 1}, target);
    }
  });
}

}  // namespace

void gemm_cpu_exact(const GemmProblem& problem) {
  GemmProblem p = problem;
  p.a = tf32_operand(p.a, p.numerics.tf32);
  p.b = tf32_operand(p.b, p.numerics.tf32);
  gemm_by_products(p, multiply);
}

}  // namespace weft::kernels
#endif
