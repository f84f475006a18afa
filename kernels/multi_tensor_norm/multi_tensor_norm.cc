#include "kernels/multi_tensor_norm/multi_tensor_norm.h"

namespace weft::kernels {

#define WEFT_OP multi_tensor_norm
#define WEFT_PROBLEM MultiTensorNormProblem
#define WEFT_LIST "kernels/multi_tensor_norm/multi_tensor_norm.inc"
#include "kernels/op_list_inl.h"

void multi_tensor_norm(const MultiTensorNormProblem& problem) {
  dispatch(multi_tensor_norm_op(), problem);
}

std::string MultiTensorNormProblem::describe() const {
  return fmt::format("multi_tensor_norm({} tensors)", tensors.size());
}

}  // namespace weft::kernels
