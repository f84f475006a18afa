// Elementwise functions of one tensor: y[i] = f(x[i]).
//
// x, y: the same shape, any strides, y without repeated elements; y is assigned (=) and may be x
// itself. Any two dtypes: arithmetic is in f64 for an f64 x, in f32 for the other floats, in i64
// (wrapping around) for integers and bool, and the result is rounded once to y's dtype as the copy
// kernel converts. A test (is_nan, logical_not, ...) gives bool, whatever x is.
//
// An integer x has neg abs sign square relu, the roundings, the tests, scale and shift; no variant
// fits the others: cast to a float first.
//
//   unary({.op = UnaryOp::gelu_erf, .x = x, .y = y});
#pragma once

#include "kernels/op.h"

namespace weft::kernels {

enum class UnaryOp : uint8_t {
  neg,
  abs,
  sign,  // -1, 0, 1; NaN stays NaN
  square,
  relu,  // max(x, 0); NaN stays NaN
  floor,
  ceil,
  round,  // halves to even
  trunc,
  scale,       // alpha x
  shift,       // x + alpha
  leaky_relu,  // x > 0 ? x : alpha x
  reciprocal,
  sqrt,
  rsqrt,  // 1 / sqrt(x)
  exp,
  expm1,  // exp(x) - 1
  log,
  log1p,  // log(1 + x)
  sin,
  cos,
  tanh,
  erf,
  sigmoid,    // 1 / (1 + exp(-x))
  softplus,   // log(1 + exp(x))
  silu,       // x sigmoid(x)
  gelu_erf,   // x (1 + erf(x / sqrt 2)) / 2, of full relative accuracy in the tail
  gelu_tanh,  // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
  // Tests: y is bool.
  logical_not,  // x == 0
  is_nan,
  is_inf,
  is_finite,
};

std::string_view name(UnaryOp op);
/// Whether the result is bool.
bool is_test(UnaryOp op);
/// Whether the op is defined on integers and bool.
bool takes_integers(UnaryOp op);

struct UnaryProblem;
/// A test has a bool y, and an integer x an op that takes integers.
bool unary_fits(const UnaryProblem& problem);
/// A transcendental function that costs more than exp does, from a dtype to the same.
bool unary_fits_table(const UnaryProblem& problem);
inline constexpr DTypeSet kUnaryTableTypes = {DType::f16, DType::bf16};

struct UnaryProblem {
  UnaryOp op;
  Tensor x, y;
  double alpha = 1;  // scale, shift, leaky_relu; rounded to the type of the arithmetic

  DType dtype() const { return x.dtype(); }
  Device device() const { return y.device(); }
  std::string describe() const;
};

void unary(const UnaryProblem& problem);
const Op<UnaryProblem>& unary_op();
std::vector<Expected> unary_reference(const UnaryProblem& problem);

}  // namespace weft::kernels
