#include "kernels/softmax/softmax.h"

namespace weft::kernels {

#define WEFT_OP softmax
#define WEFT_PROBLEM SoftmaxProblem
#include "kernels/op_list_inl.h"

std::string SoftmaxProblem::tuning_key() const {
  return operand_key("x", x) + operand_key("y", y) + operand_key("dy", dy) + operand_key("dx", dx) +
         fmt::format("axis {}{}", axis, log ? ", log" : "");
}

std::vector<Tensor> SoftmaxProblem::written() const { return {backward() ? dx : y}; }

std::string SoftmaxProblem::describe() const {
  return fmt::format("softmax({}, axis={}, log={}, backward={})", backward() ? dy : x, axis, log,
                     backward());
}

}  // namespace weft::kernels
