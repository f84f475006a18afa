// Matrix product, batched, with the epilogues of a linear layer.
//
//   none:   C = A B + bias + residual   (accumulate: C += A B + bias)
//   gelu:   aux = A B + bias, C = gelu(aux)                 forward of linear + GELU
//   dgelu:  C = (A B + bias) * gelu'(aux)                   its gradient; aux is read
//           bias_gradient[n] = sum over all rows of C[.., n] as rounded
//
// a [..., M, K], b [..., K, N], c, aux and residual [..., M, N], bias and bias_gradient [N]. The
// batch dimensions are equal in a, b, c, aux and residual; view::expand repeats an operand over
// them with stride 0. A transposed operand is a view::transpose: there are no flags. Any strides
// are correct; the fast paths want unit stride in one of the last two dimensions of a and b and in
// the last of c, other layouts pass through a copy or plain loops. c (and aux under gelu, and
// bias_gradient) must not overlap anything that is read.
//
// dtypes: a and b equal (f64 f32 f16 bf16); c that of a, or f32 when a is narrower; aux and
// residual that of c; bias that of a or c, or f32; bias_gradient f32 (f64 for f64) without gaps,
// summed in it in an order that the shape decides. Products are summed in f32 or wider (f64 for
// f64), or as `numerics` says (kernels/gemm/matmul_numerics.h), and rounded to c's dtype once per
// written value: under gelu the GELU is taken of aux as it was rounded, under dgelu the product is
// rounded before and after the multiplication by gelu'. gelu is the exact one, x (1 + erf(x / sqrt
// 2)) / 2. M, N and K may be 0; K = 0 gives the bias, or zeros.
//
// fp8: a and b are each f8e4m3 or f8e5m2, c is f32, bf16 or f16, and A B stands for scale A B,
// which undoes the scaling of the operands. Products of 128 consecutive k are summed exactly (in
// ieee: in f64, which holds them but for values 2^53 apart), rounded to f32, and those sums added
// in f32 in ascending order: the promotion to f32 that Hopper's fp8 units need every 128 of K
// (DeepSeek-V3, arXiv:2412.19437, section 3.3.2). Under a GPU's numerics its model sums the 128,
// or, on B200, whose fp8 sums have f32's precision, all. On a CUDA device ieee is what the device
// has: Hopper's fp8 units, whose sums of 128 hold 13 bits, else sums in f32. On Hopper h100 gives
// the bits that it gives on a CPU.
//
//   gemm({.a = x, .b = view::transpose(weight, 0, 1), .c = y, .bias = bias});      // y = x W^T + b
//   gemm({.a = view::transpose(dy, 0, 1), .b = x, .c = dweight, .accumulate = true});
#pragma once

#include <optional>

#include "kernels/gemm/matmul_numerics.h"
#include "kernels/op.h"

namespace weft::kernels {

enum class Epilogue : uint8_t { kNone, kGelu, kDgelu };

struct GemmProblem {
  Tensor a, b, c;
  Tensor bias;  // optional
  Epilogue epilogue = Epilogue::kNone;
  Tensor aux;               // gelu: written; dgelu: read
  bool accumulate = false;  // only with Epilogue::kNone
  Tensor residual;          // optional; with Epilogue::kNone, not with accumulate
  Tensor bias_gradient;     // optional; with Epilogue::kDgelu
  double scale = 1;         // fp8 only; rounded to f32
  MatmulNumerics numerics = matmul_numerics();

  int64_t m() const { return c.size(-2); }
  int64_t n() const { return c.size(-1); }
  int64_t k() const { return a.size(-1); }
  DType dtype() const { return a.dtype(); }
  Device device() const { return a.device(); }
  std::string describe() const;

  // For autotuning (kernels/op.h).
  std::string tuning_key() const;
  std::vector<Tensor> written() const;
};

/// The arithmetic that operands of a dtype get; each is a family of variants.
enum class GemmArithmetic : uint8_t { kIeee, kTf32, kExact, kTensorCore, kFp8 };
GemmArithmetic gemm_arithmetic(DType operands, const MatmulNumerics& numerics);
/// Of any problem whose matrix products have numerics.
template <GemmArithmetic... kinds>
bool gemm_is(const auto& problem) {
  const GemmArithmetic arithmetic = gemm_arithmetic(problem.dtype(), problem.numerics);
  return ((arithmetic == kinds) || ...);
}

/// Whether c has no elements: then the problem is finished, its bias gradient, of no rows, being
/// set to 0.
bool finish_if_empty(const GemmProblem& problem);

/// The stride between the matrices of t [..., rows, columns], 0 where there is one, or one for
/// every index of the batch; nothing where no single stride describes the batch.
std::optional<int64_t> batch_stride(const Tensor& t);

/// k whose products fp8 sums before it promotes them to f32.
inline constexpr int64_t kFp8PromotionInterval = 128;

void gemm(const GemmProblem& problem);
const Op<GemmProblem>& gemm_op();
std::vector<Expected> gemm_reference(const GemmProblem& problem);

}  // namespace weft::kernels
