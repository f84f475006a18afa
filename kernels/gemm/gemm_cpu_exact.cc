// Each element is the exact sum of its exact products, its bias and its old value, rounded once.
//
// A product of two f32 is exact in f64. Products are added by two-sum (Ogita, Rump, Oishi,
// "Accurate sum and dot product", SIAM J. Sci. Comput. 26, 2005): the rounded sum in hi, the sum of
// its rounding errors, itself rounded, in lo. hi + lo lies within (K u)^2 sum |a||b|, u = 2^-53, of
// the exact sum. Where that interval rounds to one number, that is the result; where it does not,
// at ties and under heavy cancellation, the element is summed again in a long accumulator
// (numerics/exact_sum.h).
//
// A thread owns tiles of 2 rows by a panel of columns. Ten operations for each product limit it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm/gemm_cpu_exact.cc"
#include "core/simd/targets_inl.h"

#include <bit>
#include <cmath>

#include "kernels/gemm/f64_panels.h"
#include "numerics/error_bounds.h"
#include "numerics/exact_sum.h"

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
  HWY_INLINE void store(D d, double (*sums)[kExactRows][kPanelColumns], int row, int64_t j) const {
    hn::StoreU(hi, d, sums[0][row] + j);
    hn::StoreU(lo, d, sums[1][row] + j);
    hn::StoreU(magnitude, d, sums[2][row] + j);
  }
};

/// hi, lo and the sums of magnitudes of a tile's elements: hi + lo is their sum.
void sum_tile(const double* row0, const double* row1, const double* panel, int64_t k,
              double (*sums)[kExactRows][kPanelColumns]) {
  const hn::CappedTag<double, 8> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t j = 0; j < kPanelColumns; j += lanes) {
    Column<decltype(d)> first(d), second(d);
    for (int64_t i = 0; i < k; ++i) {
      const auto b = hn::LoadU(d, panel + i * kPanelColumns + j);
      first.add(hn::Set(d, row0[i]), b);
      second.add(hn::Set(d, row1[i]), b);
    }
    first.store(d, sums, 0, j);
    second.store(d, sums, 1, j);
  }
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(sum_tile);

namespace {

/// s + t = a + b exactly, s being the nearest double (Knuth's two-sum).
struct TwoSum {
  double s, t;
  TwoSum(double a, double b) : s(a + b) {
    const double b_part = s - a;
    t = (a - (s - b_part)) + (b - b_part);
  }
};

/// The exact s + t, s being the nearest double, rounded to odd: s, or its neighbour on t's side.
double round_to_odd(double s, double t) {
  const uint64_t bits = std::bit_cast<uint64_t>(s);
  if (t == 0 || (bits & 1)) return s;
  return std::bit_cast<double>((t > 0) == (s > 0) ? bits + 1 : bits - 1);
}

/// What an element is the sum of.
struct Terms {
  const double* row;    // of A
  const double* panel;  // column of B, kPanelColumns apart
  int64_t k;
  double bias, old;  // or 0

  double summed_again(DType dtype) const {
    numerics::ExactSum sum;
    for (int64_t i = 0; i < k; ++i) sum.add(row[i] * panel[i * kPanelColumns]);
    sum.add(bias);
    sum.add(old);
    return numerics::round_to(sum.value_to_odd(), dtype);
  }
  /// For infinities and NaNs, which any order of summation treats alike.
  double summed_plainly(DType dtype) const {
    double sum = bias + old;
    for (int64_t i = 0; i < k; ++i) sum += row[i] * panel[i * kPanelColumns];
    return numerics::round_to(sum, dtype);
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
  const double low = numerics::round_to(round_to_odd(below.s, below.t), dtype);
  const double high = numerics::round_to(round_to_odd(above.s, above.t), dtype);
  return low == high ? low : terms.summed_again(dtype);
}

void multiply(const GemmProduct& p) {
  for_each_tile(p, p.scale, kExactRows, [&](const F64Tile& tile) {
    const auto& [row, rows, column, columns, k, a, panel] = tile;
    double sums[3][kExactRows][kPanelColumns];
    float out[kExactRows][kPanelColumns], old[kExactRows][kPanelColumns] = {};
    HWY_DYNAMIC_DISPATCH(sum_tile)(tile.a_row(0), tile.a_row(1), panel, k, sums);
    const Matrix target = p.c.block(row, rows, column, columns);
    if (p.accumulate) copy_matrix(target, {DType::f32, old, rows, columns, kPanelColumns, 1});
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        const Terms terms{tile.a_row(i), panel + j, k, p.bias ? p.bias[column + j] : 0.0,
                          old[i][j]};
        out[i][j] = static_cast<float>(
            finish(terms, sums[0][i][j], sums[1][i][j], sums[2][i][j], p.c.dtype));
      }
    }
    copy_matrix({DType::f32, out, rows, columns, kPanelColumns, 1}, target);
  });
}

}  // namespace

void gemm_cpu_exact(const GemmProblem& problem) {
  gemm_by_products(with_tf32_operands(problem, problem.numerics.tf32), multiply);
}

}  // namespace weft::kernels
#endif
