#include "kernels/gemm/gemm_tma.h"

namespace weft::kernels {
namespace {

constexpr int64_t kAlignment = 16;

struct Lines {
  int64_t length, count, stride;  // stride in elements
  bool is_transposed;
};

/// The last two dimensions as lines without gaps; nothing when both have gaps.
std::optional<Lines> lines_of(const Tensor& t) {
  const int64_t rows = t.size(-2), columns = t.size(-1);
  // The stride of a dimension of one element is never used.
  const int64_t row_stride = rows == 1 ? columns : t.stride(-2);
  const int64_t column_stride = columns == 1 ? 1 : t.stride(-1);
  if (column_stride == 1) return Lines{columns, rows, row_stride, false};
  if (t.stride(-2) == 1) return Lines{rows, columns, column_stride, true};
  return std::nullopt;
}

bool is_aligned(const Tensor& t, int64_t elements) {
  return elements * static_cast<int64_t>(t.itemsize()) % kAlignment == 0;
}

bool has_aligned_base(const Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.raw()) % kAlignment == 0;
}

}  // namespace

std::optional<TmaMatrix> tma_matrix(const Tensor& t) {
  const auto lines = lines_of(t);
  const auto stride = batch_stride(t);
  if (!lines || !stride || !has_aligned_base(t) || t.numel() == 0) return std::nullopt;
  const auto size = static_cast<int64_t>(t.itemsize());
  TmaMatrix matrix{t.raw(), lines->length, lines->count, 1, 0, 0, lines->is_transposed};
  // A single line needs no stride; TMA wants one.
  const int64_t padded = (lines->length * size + kAlignment - 1) / kAlignment * kAlignment;
  matrix.line_bytes = lines->count == 1 ? padded : lines->stride * size;
  matrix.batch_bytes = matrix.line_bytes * matrix.lines;
  if (*stride != 0) {
    matrix.batches = t.numel() / (lines->length * lines->count);
    matrix.batch_bytes = *stride * size;
  }
  constexpr int64_t kMaxStride = int64_t{1} << 40, kMaxSize = int64_t{1} << 31;
  const auto takes = [&](int64_t bytes) {
    return bytes > 0 && bytes % kAlignment == 0 && bytes < kMaxStride;
  };
  if (!takes(matrix.line_bytes) || !takes(matrix.batch_bytes) || matrix.length >= kMaxSize ||
      matrix.lines >= kMaxSize) {
    return std::nullopt;
  }
  return matrix;
}

bool fits_16_byte_copies(const Tensor& t) {
  const auto lines = lines_of(t);
  if (!lines || !has_aligned_base(t)) return false;
  if (lines->count > 1 && !is_aligned(t, lines->stride)) return false;
  for (int d = 0; d + 2 < t.dim(); ++d) {
    if (t.size(d) > 1 && !is_aligned(t, t.stride(d))) return false;
  }
  return true;
}

bool gemm_fits_mma(const GemmProblem& p) {
  return gemm_is<GemmArithmetic::kIeee>(p) && lines_of(p.a) && lines_of(p.b);
}

bool gemm_fits_wgmma(const GemmProblem& p) {
  return gemm_is<GemmArithmetic::kIeee>(p) && p.k() > 0 && tma_matrix(p.a) && tma_matrix(p.b) &&
         runtime::limits(p.device().index).compute_capability == 90;
}

bool gemm_fits_wgmma_fp8(const GemmProblem& p) {
  const bool is_modelled =
      p.numerics.accumulation == Accumulation::kH100 && p.a.dtype() == p.b.dtype();
  return (gemm_is<GemmArithmetic::kFp8>(p) || is_modelled) && p.k() > 0 &&
         runtime::limits(p.device().index).compute_capability == 90;
}

}  // namespace weft::kernels
