#include "kernels/unary/unary.h"

#include <iterator>

namespace weft::kernels {

#define WEFT_OP unary
#define WEFT_PROBLEM UnaryProblem
#include "kernels/op_list_inl.h"

std::string_view name(UnaryOp op) {
  static constexpr std::string_view kNames[] = {
      "neg", "abs", "sign", "square", "relu", "floor", "ceil", "round", "trunc", "scale", "shift",
      "leaky_relu", "reciprocal", "sqrt", "rsqrt", "hardswish",
      // Transcendental.
      "elu", "exp", "expm1", "log", "log1p", "exp2", "log2", "log10", "sin", "cos", "tan", "asin",
      "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "tanh", "erf", "sigmoid",
      "softplus", "silu", "gelu_erf", "gelu_tanh",
      // Tests.
      "logical_not", "is_nan", "is_inf", "is_finite"};
  static_assert(std::size(kNames) == static_cast<size_t>(UnaryOp::kIsFinite) + 1);
  return kNames[static_cast<size_t>(op)];
}

bool is_test(UnaryOp op) { return op >= UnaryOp::kLogicalNot; }
bool takes_integers(UnaryOp op) { return op <= UnaryOp::kShift || is_test(op); }

bool unary_takes(UnaryOp op, DType x, DType y) {
  return (!is_test(op) || y == DType::boolean) && (is_floating(x) || takes_integers(op));
}

bool unary_fits(const UnaryProblem& p) { return unary_takes(p.op, p.x.dtype(), p.y.dtype()); }

std::string UnaryProblem::describe() const {
  return fmt::format("{}({} to {})", name(op), x, y.dtype());
}

}  // namespace weft::kernels
