#include "core/log.h"
#include "core/view.h"
#include "kernels/copy/copy.h"
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

/// Is x [..., lines, K] what TMA can address, along K?
bool is_k_major(const Tensor& x) {
  const auto matrix = tma_matrix(x);
  return matrix && !matrix->is_transposed;
}

/// Whether wgmma saves tf32 products more than the copies cost that it needs: a pass of 8 bytes at
/// 4 TB/s over the M K elements of A, or the N K of B, beside 2 M N K operations at 495 TFLOP/s, of
/// which wgmma reaches 87% and mma.sync 65% (arXiv:2402.13499). Each copied element has to take
/// part in so many products.
bool copies_pay(const GemmProblem& p) {
  constexpr double kLeastProducts = 1280;
  const auto cost = [](const Tensor& x, int64_t products) {
    return is_k_major(x) ? 0 : kLeastProducts / static_cast<double>(products);
  };
  return cost(p.a, p.n()) + cost(view::transpose(p.b, -1, -2), p.m()) < 1;
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

Tensor k_major(const Tensor& x, const char* variant, const char* operand) {
  if (is_k_major(x)) return x;
  if (log_level() > 0) {
    log_once(fmt::format(
        "{} copies {} {} first: wgmma takes {} along K, TMA lines at multiples of 16 bytes",
        variant, operand, x, x.dtype()));
  }
  Tensor from = x;
  while (batch_stride(x) == 0 && from.dim() > 2) from = view::select(from, 0, 0);
  const int64_t k = from.size(-1), elements = kAlignment / static_cast<int64_t>(x.itemsize());
  Shape shape = from.shape();
  shape[shape.size() - 1] = (k + elements - 1) / elements * elements;
  const Tensor lines =
      view::narrow(Tensor::empty(shape, x.dtype(), x.device()), from.dim() - 1, 0, k);
  copy({.x = from, .y = lines});
  return lines;
}

bool has_transposed_lines(const Tensor& t) {
  const auto lines = lines_of(t);
  return lines && lines->is_transposed;
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
  if (p.k() == 0 || runtime::limits(p.device().index).compute_capability != 90) return false;
  if (p.dtype() == DType::f32) {
    return gemm_is<GemmArithmetic::kTf32>(p) && p.numerics.tf32 == Tf32::kTruncate && copies_pay(p);
  }
  return gemm_is<GemmArithmetic::kIeee>(p) && tma_matrix(p.a) && tma_matrix(p.b);
}

bool gemm_fits_wgmma_fp8(const GemmProblem& p) {
  const bool is_modelled =
      p.numerics.accumulation == Accumulation::kH100 && p.a.dtype() == p.b.dtype();
  return (gemm_is<GemmArithmetic::kFp8>(p) || is_modelled) && p.k() > 0 &&
         runtime::limits(p.device().index).compute_capability == 90;
}

}  // namespace weft::kernels
