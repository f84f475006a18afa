#include "kernels/binary/binary.h"

#include <iterator>

namespace weft::kernels {

#define WEFT_OP binary
#define WEFT_PROBLEM BinaryProblem
#include "kernels/op_list_inl.h"

std::string_view name(BinaryOp op) {
  static constexpr std::string_view kNames[] = {
      "add", "add_scaled", "sub", "mul", "div", "pow", "floor_divide", "remainder", "atan2",
      "maximum", "minimum",
      // Tests.
      "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor",
      // Gradients.
      "relu_grad", "leaky_relu_grad", "sigmoid_grad", "tanh_grad", "silu_grad", "gelu_erf_grad",
      "gelu_tanh_grad"};
  static_assert(std::size(kNames) == static_cast<size_t>(BinaryOp::kGeluTanhGrad) + 1);
  return kNames[static_cast<size_t>(op)];
}

bool is_test(BinaryOp op) { return op >= BinaryOp::kEq && op <= BinaryOp::kLogicalXor; }
bool takes_integers(BinaryOp op) { return op <= BinaryOp::kLogicalXor && op != BinaryOp::kAtan2; }

bool binary_takes(BinaryOp op, DType a, DType b, DType y) {
  return (!is_test(op) || y == DType::boolean) &&
         (is_floating(promote(a, b)) || takes_integers(op));
}

bool binary_fits(const BinaryProblem& p) {
  return binary_takes(p.op, p.a.dtype(), p.b.dtype(), p.y.dtype());
}

bool binary_fits_cuda(const BinaryProblem& p) {
  const bool may_throw = p.op >= BinaryOp::kDiv && p.op <= BinaryOp::kRemainder;
  return binary_fits(p) && (is_floating(p.dtype()) || !may_throw);
}

std::string BinaryProblem::describe() const {
  return fmt::format("{}({}, {} to {})", name(op), a, b, y.dtype());
}

}  // namespace weft::kernels
