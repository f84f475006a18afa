#include "kernels/multi_tensor_scale/multi_tensor_scale.h"

namespace weft::kernels {

#define WEFT_OP multi_tensor_scale
#define WEFT_PROBLEM MultiTensorScaleProblem
#define WEFT_LIST "kernels/multi_tensor_scale/multi_tensor_scale.inc"
#include "kernels/op_list_inl.h"

void multi_tensor_scale(const MultiTensorScaleProblem& problem) {
  dispatch(multi_tensor_scale_op(), problem);
}

std::string MultiTensorScaleProblem::describe() const {
  return fmt::format("multi_tensor_scale({} tensors, factor={})", tensors.size(),
                     factor_from.defined() ? "from memory" : fmt::format("{}", factor));
}

}  // namespace weft::kernels
