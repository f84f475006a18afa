// fp8 operands, widened to f64, where the sum of 128 of their products is exact: a product has 8
// bits or fewer and lies between 2^-18 and 2^18 for e4m3, between 2^-25 and 2^25 for e5m2 with
// e4m3. (Sums of e5m2 with e4m3, or with e5m2, whose terms span more than 53 bits are rounded to
// those.) Each such sum is rounded to f32 and added to the f32 accumulator. A thread owns tiles of
// 4 rows by a panel of columns; the f64 units limit it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm/gemm_cpu_fp8.cc"
#include "core/simd/targets_inl.h"

#include "kernels/gemm/f64_panels.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

/// sums[i][j] += the sum over k of rows[i][k] panel[k][j], rounded to f32.
void add_tile(const double* const* rows, const double* panel, int64_t k, float* sums) {
  const hn::CappedTag<double, 8> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN double exact[kFp8Rows][kPanelColumns];
  for (int64_t j = 0; j < kPanelColumns; j += lanes) {
    hn::Vec<decltype(d)> sum[kFp8Rows];
    for (auto& s : sum) s = hn::Zero(d);
    for (int64_t i = 0; i < k; ++i) {
      const auto b = hn::LoadU(d, panel + i * kPanelColumns + j);
      for (int r = 0; r < kFp8Rows; ++r) {
        sum[r] = hn::Add(sum[r], hn::Mul(hn::Set(d, rows[r][i]), b));
      }
    }
    for (int r = 0; r < kFp8Rows; ++r) hn::StoreU(sum[r], d, exact[r] + j);
  }
  const double* from = exact[0];
  for (int64_t i = 0; i < kFp8Rows * kPanelColumns; ++i) sums[i] += static_cast<float>(from[i]);
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(add_tile);

namespace {

void multiply(const GemmProduct& p) {
  for_each_tile(p, 1, kFp8Rows, [&](const F64Tile& tile) {
    float sums[kFp8Rows][kPanelColumns] = {};
    for (int64_t first = 0; first < tile.k; first += kFp8PromotionInterval) {
      const double* block[kFp8Rows];
      for (int64_t i = 0; i < kFp8Rows; ++i) block[i] = tile.a_row(i) + first;
      HWY_DYNAMIC_DISPATCH(add_tile)
      (block, tile.panel + first * kPanelColumns, std::min(kFp8PromotionInterval, tile.k - first),
       sums[0]);
    }
    for (auto& row : sums) {
      for (float& sum : row) sum *= p.scale;
    }
    add_bias_matrix({DType::f32, sums, tile.rows, tile.columns, kPanelColumns, 1},
                    p.bias ? p.bias + tile.column : nullptr, p.accumulate,
                    p.c.block(tile.row, tile.rows, tile.column, tile.columns));
  });
}

}  // namespace

void gemm_cpu_fp8(const GemmProblem& problem) { gemm_by_products(problem, multiply); }

}  // namespace weft::kernels
#endif
