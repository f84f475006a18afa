// TF32 on a CPU: the operands lose their low bits, then the product is an ordinary one in f32, in
// which products of 11-bit significands are exact. Slower than f32 by the copies of the operands:
// it shows what TF32 does to a result, it saves no time.
#include <bit>

#include "core/float_formats.h"
#include "core/parallel.h"
#include "core/view.h"
#include "kernels/gemm/gemm_batch.h"

namespace weft::kernels {
namespace {

float truncated(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return std::bit_cast<float>((is_nan ? bits | 0x400000u : bits) & 0xffffe000u);
}

void round_rows(const Tensor& x, const Tensor& y, Tf32 rounding) {
  const int64_t columns = x.size(-1), rows = x.numel() / columns;
  std::vector<int64_t> offsets;
  offsets.reserve(rows);
  const Tensor first = view::select(x, -1, 0);
  for_each_offset(first.shape(), first.strides(), [&](int64_t i) { offsets.push_back(i); });
  const float* const from = x.data<float>();
  float* const to = y.data<float>();
  const int64_t step = x.stride(-1);
  parallel_for(rows, std::max<int64_t>(1, 16384 / columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* in = from + offsets[row];
      float* out = to + row * columns;
      if (rounding == Tf32::kTruncate) {
        for (int64_t i = 0; i < columns; ++i) out[i] = truncated(in[i * step]);
      } else {
        for (int64_t i = 0; i < columns; ++i) out[i] = static_cast<float>(tf32(in[i * step]));
      }
    }
  });
}

/// An operand's copy.
struct Copy {
  Tensor from, to;  // a repeated dimension counted once, columns that lie side by side as rows
  Tensor operand;   // `to` in the operand's shape

  explicit Copy(const Tensor& x) : from(x) {
    for (int d = 0; d < x.dim(); ++d) {
      if (x.stride(d) == 0 && x.size(d) > 1) from = view::narrow(from, d, 0, 1);
    }
    const bool transposed = x.dim() >= 2 && x.stride(-2) == 1 && x.stride(-1) != 1;
    if (transposed) from = view::transpose(from, -1, -2);
    to = Tensor::empty(from.shape(), DType::f32);
    operand = view::expand(transposed ? view::transpose(to, -1, -2) : to, x.shape());
  }
};

}  // namespace

Tensor tf32_operand(const Tensor& x, Tf32 rounding) {
  if (rounding == Tf32::kOff || x.dtype() != DType::f32 || x.numel() == 0) return x;
  const Copy copy(x);
  round_rows(copy.from, copy.to, rounding);
  return copy.operand;
}

int64_t gemm_tf32_scratch(const GemmProblem& problem) {
  const Copy a(problem.a), b(problem.b);
  GemmProblem p = problem;
  p.a = a.operand, p.b = b.operand, p.numerics = {};
  return static_cast<int64_t>(a.to.nbytes() + b.to.nbytes()) + gemm_onednn_scratch(p);
}

GemmProblem with_tf32_operands(GemmProblem p, Tf32 rounding) {
  p.a = tf32_operand(p.a, rounding);
  p.b = tf32_operand(p.b, rounding);
  return p;
}

void gemm_cpu_tf32(const GemmProblem& problem) {
  GemmProblem p = with_tf32_operands(problem, problem.numerics.tf32);
  p.numerics = {};
  gemm(p);
}

}  // namespace weft::kernels
