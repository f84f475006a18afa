#include "kernels/multi_tensor_scale/multi_tensor_scale.h"

namespace weft::kernels {

#define WEFT_OP multi_tensor_scale
#define WEFT_PROBLEM MultiTensorScaleProblem
#include "kernels/op_list_inl.h"

std::string MultiTensorScaleProblem::describe() const {
  return fmt::format("multi_tensor_scale({} tensors, factor={})", tensors.size(),
                     factor_from.defined() ? "from memory" : fmt::format("{}", factor));
}

}  // namespace weft::kernels
