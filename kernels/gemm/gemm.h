// Matrix product, batched, with the epilogues of a linear layer.
//
//   none:   C = A B + bias          (accumulate: C += A B + bias)
//   gelu:   aux = A B + bias, C = gelu(aux)                 forward of linear + GELU
//   dgelu:  C = (A B + bias) * gelu'(aux)                   its gradient; aux is read
//
// a [..., M, K], b [..., K, N], c and aux [..., M, N], bias [N]. The batch dimensions are equal in
// a, b, c and aux; view::expand repeats an operand over them with stride 0. A transposed operand is
// a view::transpose: there are no flags. Any strides are correct; the fast paths want unit stride
// in one of the last two dimensions of a and b and in the last of c, other layouts pass through a
// copy or plain loops. c (and aux under gelu) must not overlap anything that is read.
//
// dtypes: a and b equal (f64 f32 f16 bf16); c that of a, or f32 when a is narrower; aux that of c;
// bias that of a or c, or f32. Products are summed in f32 or wider (f64 for f64) and rounded
// to c's dtype once per written value: under gelu the GELU is taken of aux as it was rounded, under
// dgelu the product is rounded before and after the multiplication by gelu'. gelu is the exact one,
// x (1 + erf(x / sqrt 2)) / 2. M, N and K may be 0; K = 0 gives the bias, or zeros.
//
//   gemm({.a = x, .b = view::transpose(weight, 0, 1), .c = y, .bias = bias});      // y = x W^T + b
//   gemm({.a = view::transpose(dy, 0, 1), .b = x, .c = dweight, .accumulate = true});
#pragma once

#include "kernels/op.h"

namespace weft::kernels {

enum class Epilogue : uint8_t { none, gelu, dgelu };

struct GemmProblem {
  Tensor a, b, c;
  Tensor bias;  // optional
  Epilogue epilogue = Epilogue::none;
  Tensor aux;               // gelu: written; dgelu: read
  bool accumulate = false;  // only with Epilogue::none

  int64_t m() const { return c.size(-2); }
  int64_t n() const { return c.size(-1); }
  int64_t k() const { return a.size(-1); }
  DType dtype() const { return a.dtype(); }
  Device device() const { return a.device(); }
  std::string describe() const;
};

void gemm(const GemmProblem& problem);
const Op<GemmProblem>& gemm_op();
std::vector<Expected> gemm_reference(const GemmProblem& problem);

}  // namespace weft::kernels
