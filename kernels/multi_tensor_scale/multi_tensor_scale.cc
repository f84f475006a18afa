#include "kernels/multi_tensor_scale/multi_tensor_scale.h"

namespace weft::kernels {

#define WEFT_VARIANT(name, device, dtypes, fits) WEFT_DECLARE_VARIANT(MultiTensorScaleProblem, name)
#include "kernels/multi_tensor_scale/multi_tensor_scale.inc"
#undef WEFT_VARIANT

const Op<MultiTensorScaleProblem>& multi_tensor_scale_op() {
#define WEFT_VARIANT(name, device, dtypes, fits) \
  WEFT_VARIANT_ROW(MultiTensorScaleProblem, name, device, dtypes, fits)
  static constexpr Variant<MultiTensorScaleProblem> kVariants[] = {
#include "kernels/multi_tensor_scale/multi_tensor_scale.inc"
  };
#undef WEFT_VARIANT
  static constexpr Op<MultiTensorScaleProblem> kOp = {"multi_tensor_scale", kVariants};
  return kOp;
}

void multi_tensor_scale(const MultiTensorScaleProblem& problem) {
  dispatch(multi_tensor_scale_op(), problem);
}

std::string MultiTensorScaleProblem::describe() const {
  return fmt::format("multi_tensor_scale({} tensors, factor={})", tensors.size(),
                     factor_from.defined() ? "from memory" : fmt::format("{}", factor));
}

}  // namespace weft::kernels
