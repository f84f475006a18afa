#include "kernels/multi_tensor_norm/multi_tensor_norm.h"

namespace weft::kernels {

#define WEFT_OP multi_tensor_norm
#define WEFT_PROBLEM MultiTensorNormProblem
#include "kernels/op_list_inl.h"

std::string MultiTensorNormProblem::describe() const {
  return fmt::format("multi_tensor_norm({} tensors)", tensors.size());
}

}  // namespace weft::kernels
