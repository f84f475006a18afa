// Small products: done in the time that a library takes to begin.
//
// C is cut into tiles of up to four rows and two vectors, which stay in registers; each element is
// summed in ascending order of k by fused multiply-adds in f32 (f64 for f64). B's rows are read
// where they lie; those of a transposed B are first gathered in a panel of a tile's width, unless A
// has so few rows that dot products of vectors are quicker. Narrow operands are widened first. A
// product is one thread's, a batch of them is dealt out. The limiter is the two multiply-adds that
// a core begins in each cycle, and for few rows the panels.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm/gemm_cpu_small.cc"
#include "core/simd/targets_inl.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <type_traits>

#include "core/parallel.h"
#include "kernels/gemm/gemm_batch.h"
#include "kernels/gemm/gemm_small.h"
#include "kernels/simd/rows_inl.h"
#include "kernels/simd/variant.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

// Eight sums are under way at once: two multiply-adds a cycle times their latency of four.
constexpr int kTileRows = 4, kTileVectors = 2;
// Rows of A up to which dot products are quicker than gathering a transposed B.
constexpr int64_t kDotRows = 4;
// Multiply-adds below which one thread is quicker than waking the others.
constexpr int64_t kSerialWork = int64_t{1} << 19;

/// m in Acc: itself, or a copy of the same order in `memory`.
template <class Acc>
Matrix widened(const Matrix& m, std::unique_ptr<Acc[]>& memory) {
  if (m.dtype == dtype_of<Acc>()) return m;
  if (m.row_stride == 1 && m.col_stride != 1) {
    return widened(m.transposed(), memory).transposed();
  }
  memory = std::make_unique_for_overwrite<Acc[]>(m.rows * m.cols);
  const Matrix copy = dense_matrix(dtype_of<Acc>(), memory.get(), m.rows, m.cols);
  copy_matrix(m, copy);
  return copy;
}

/// One product: C = A B + bias, or C += that. A and B hold Acc.
template <class Acc>
struct SmallProduct {
  Matrix a, b, c;
  const Acc* bias;  // or null
  bool accumulate;

  const Acc* row_of_a(int64_t i) const { return static_cast<const Acc*>(a.at(i, 0)); }
  const Acc* column_of_b(int64_t j) const { return static_cast<const Acc*>(b.at(0, j)); }
};

/// `count` columns of B from `column` on, as rows of `count` elements side by side.
template <class Acc>
void gather_panel(const SmallProduct<Acc>& p, int64_t column, int64_t count, Acc* panel) {
  const hn::ScalableTag<Acc> d;
  const hn::RebindToSigned<decltype(d)> di;
  using Index = hn::TFromD<decltype(di)>;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t stride = p.b.col_stride;
  const Acc* const first = p.column_of_b(column);
  const bool has_index = stride >= 0 && stride <= std::numeric_limits<Index>::max() / lanes;
  const int64_t whole = has_index ? count / lanes * lanes : 0;
  const auto places = hn::Mul(hn::Iota(di, 0), hn::Set(di, static_cast<Index>(has_index * stride)));
  for (int64_t k = 0; k < p.b.rows; ++k) {
    const Acc* const from = first + k * p.b.row_stride;
    Acc* const to = panel + k * count;
    for (int64_t j = 0; j < whole; j += lanes) {
      hn::StoreU(hn::GatherIndex(d, from + j * stride, places), d, to + j);
    }
    for (int64_t j = whole; j < count; ++j) to[j] = from[j * stride];
  }
}

/// Sums of a tile, whose rows lie `width` apart.
template <class Acc>
struct Tile {
  static constexpr int64_t kWidth = kTileVectors * hn::MaxLanes(hn::ScalableTag<Acc>());
  HWY_ALIGN Acc sums[kTileRows][kWidth];
};

/// A's rows from `row` on, kRows of them, times kVectors vectors of each of B's rows, the last with
/// `last` lanes. B's rows there lie from b on, b_stride apart.
template <int kRows, int kVectors, class D, class Acc = hn::TFromD<D>>
HWY_INLINE void multiply_tile(D d, const Matrix& a, int64_t row, const Acc* b, int64_t b_stride,
                              size_t last, Tile<Acc>& tile) {
  using V = hn::Vec<D>;
  const size_t lanes = hn::Lanes(d);
  const auto is_in_last = hn::FirstN(d, last);
  // Without masks in hardware whole vectors are read where B's next rows lie behind the last lanes.
  const auto beyond = static_cast<int64_t>(lanes - last);
  const int64_t whole = kHasMasks      ? a.cols
                        : b_stride > 0 ? a.cols - (beyond + b_stride - 1) / b_stride
                                       : 0;
  const auto load = [&](const Acc* from, int v, bool is_whole) HWY_ATTR {
    if (v + 1 < kVectors) return hn::LoadU(d, from + v * lanes);
    if (is_whole) return hn::MaskedLoad(is_in_last, d, from + v * lanes);
    return load_part(d, from + v * lanes, last);
  };
  V sums[kRows][kVectors];
  for (auto& sums_of_row : sums) {
    for (V& sum : sums_of_row) sum = hn::Zero(d);
  }
  const Acc* const first = static_cast<const Acc*>(a.at(row, 0));
  for (int64_t k = 0; k < a.cols; ++k) {
    V x[kVectors];
    for (int v = 0; v < kVectors; ++v) x[v] = load(b + k * b_stride, v, k < whole);
    for (int r = 0; r < kRows; ++r) {
      const V factor = hn::Set(d, first[r * a.row_stride + k * a.col_stride]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(factor, x[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) hn::Store(sums[r][v], d, tile.sums[r] + v * lanes);
  }
}

/// Dot products of a row of A and `count` columns of B, elements side by side, four at a time.
template <class Acc>
void multiply_dots(const SmallProduct<Acc>& p, int64_t row, int64_t column, int64_t count,
                   Tile<Acc>& tile) {
  constexpr int kDots = 4;
  const hn::ScalableTag<Acc> d;
  using V = hn::Vec<decltype(d)>;
  const Acc* const a = p.row_of_a(row);
  for (int64_t j = 0; j < count; j += kDots) {
    const Acc* b[kDots];
    for (int i = 0; i < kDots; ++i) b[i] = p.column_of_b(column + std::min(j + i, count - 1));
    V sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for_each_vector(d, p.a.cols, [&](size_t k, size_t m) HWY_ATTR {
      const V x = load_part(d, a + k, m);
      sum0 = hn::MulAdd(x, load_part(d, b[0] + k, m), sum0);
      sum1 = hn::MulAdd(x, load_part(d, b[1] + k, m), sum1);
      sum2 = hn::MulAdd(x, load_part(d, b[2] + k, m), sum2);
      sum3 = hn::MulAdd(x, load_part(d, b[3] + k, m), sum3);
    });
    const V sums[] = {sum0, sum1, sum2, sum3};
    for (int i = 0; i < kDots && j + i < count; ++i) {
      tile.sums[0][j + i] = hn::GetLane(hn::SumOfLanes(d, sums[i]));
    }
  }
}

/// The tile's sums and bias, added to what C has there or not, as its part of C.
template <class Acc>
HWY_NOINLINE void store_tile(const SmallProduct<Acc>& p, const Matrix& part, const Acc* bias,
                             Tile<Acc>& tile) {
  const hn::ScalableTag<Acc> d;
  const Matrix sums = {dtype_of<Acc>(), tile.sums, part.rows, part.cols, Tile<Acc>::kWidth, 1};
  const bool is_in_place = part.dtype == sums.dtype && part.col_stride == 1;
  Tile<Acc> old_values;
  Matrix old = is_in_place ? part : sums;
  if (p.accumulate && !is_in_place) {
    old.data = old_values.sums;
    copy_matrix(part, old);
  }
  const Matrix& to = is_in_place ? part : sums;
  for (int64_t r = 0; r < part.rows; ++r) {
    const Acc* const before = static_cast<const Acc*>(old.at(r, 0));
    Acc* const after = static_cast<Acc*>(to.at(r, 0));
    for_each_vector(d, part.cols, [&](size_t j, size_t m) HWY_ATTR {
      auto sum = hn::Load(d, tile.sums[r] + j);
      if (bias) sum = hn::Add(sum, load_part(d, bias + j, m));
      if (p.accumulate) sum = hn::Add(sum, load_part(d, before + j, m));
      store_part(d, sum, after + j, m);
    });
  }
  if (!is_in_place) copy_matrix(sums, part);
}

template <class Acc>
void multiply_product(const SmallProduct<Acc>& p) {
  const hn::ScalableTag<Acc> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t width = kTileVectors * lanes, rows = p.c.rows, columns = p.c.cols;
  const bool has_rows = p.b.col_stride == 1;
  const bool is_dots = !has_rows && rows <= kDotRows && p.a.col_stride == 1 && p.b.row_stride == 1;
  Tile<Acc> tile;
  std::unique_ptr<Acc[]> panel;
  if (!has_rows && !is_dots) {
    panel = std::make_unique_for_overwrite<Acc[]>(p.b.rows * std::min(width, columns));
  }
  for (int64_t column = 0; column < columns; column += width) {
    const int64_t count = std::min(width, columns - column);
    if (panel) gather_panel(p, column, count, panel.get());
    const Acc* const b = panel ? panel.get() : p.column_of_b(column);
    const int64_t b_stride = panel ? count : p.b.row_stride;
    for (int64_t row = 0; row < rows;) {
      const int64_t height = is_dots ? 1 : std::min<int64_t>(kTileRows, rows - row);
      const auto multiply = [&]<int kRows>(std::integral_constant<int, kRows>) HWY_ATTR {
        if (count > lanes) {
          multiply_tile<kRows, 2>(d, p.a, row, b, b_stride, count - lanes, tile);
        } else {
          multiply_tile<kRows, 1>(d, p.a, row, b, b_stride, count, tile);
        }
      };
      if (is_dots) {
        multiply_dots(p, row, column, count, tile);
      } else if (height == 4) {
        multiply(std::integral_constant<int, 4>());
      } else if (height == 3) {
        multiply(std::integral_constant<int, 3>());
      } else if (height == 2) {
        multiply(std::integral_constant<int, 2>());
      } else {
        multiply(std::integral_constant<int, 1>());
      }
      store_tile(p, p.c.block(row, height, column, count), p.bias ? p.bias + column : nullptr,
                 tile);
      row += height;
    }
  }
}

template <class Acc>
void multiply_batch(const GemmProblem& p, const GemmBatch& batch, const Tensor& bias) {
  const int64_t work = batch.c.first.rows * batch.c.first.cols * p.k();
  parallel_for(batch.size(), kSerialWork / std::max<int64_t>(1, work),
               [&](int64_t begin, int64_t end) {
                 std::unique_ptr<Acc[]> memory_a, memory_b;
                 for (int64_t i = begin; i < end; ++i) {
                   multiply_product<Acc>({.a = widened(batch.a.at(i), memory_a),
                                          .b = widened(batch.b.at(i), memory_b),
                                          .c = batch.sums().at(i),
                                          .bias = bias.defined() ? bias.data<Acc>() : nullptr,
                                          .accumulate = p.accumulate});
                 }
               });
}

void multiply_small(const GemmProblem& problem) {
  gemm_by_batch(problem,
                problem.dtype() == DType::f64 ? multiply_batch<double> : multiply_batch<float>);
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
WEFT_HIGHWAY_VARIANT(gemm_cpu_small, GemmProblem, multiply_small)

namespace weft::kernels {

// Measured on one core with AVX-512, in turns with the variant that would be taken otherwise. In
// f32 products of 64^3 take as long as oneDNN's, of 48^3 two thirds, of 4^3 a twelfth; narrow
// operands, which oneDNN multiplies twice as fast, break even at 32^3. In a batch, whose products
// share one call, that is sooner. Eigen takes two to eight times as long everywhere. Of many rows
// of few columns most of a vector is idle.
bool gemm_fits_small(const GemmProblem& p) {
  if (!gemm_is<GemmArithmetic::kIeee>(p)) return false;
  if (p.c.numel() == 0) return true;
  constexpr int64_t kRowsOfColumns = 16;
  if (p.m() / kRowsOfColumns > p.n()) return false;
  const int64_t product = p.m() * p.n();
  const auto k = static_cast<double>(p.k());
  if (p.dtype() == DType::f64) return static_cast<double>(product) * k <= 0x1p20;
  const bool is_batch = p.c.numel() > product;
  const double most = is_batch ? 0x1p13 : p.dtype() == DType::f32 ? 0x1p17 : 0x1p14;
  return static_cast<double>(p.c.numel()) * k <= most;
}

}  // namespace weft::kernels
#endif
