#include "kernels/multi_tensor_norm/multi_tensor_norm.h"

namespace weft::kernels {

#define WEFT_VARIANT(name, device, dtypes, fits) WEFT_DECLARE_VARIANT(MultiTensorNormProblem, name)
#include "kernels/multi_tensor_norm/multi_tensor_norm.inc"
#undef WEFT_VARIANT

const Op<MultiTensorNormProblem>& multi_tensor_norm_op() {
#define WEFT_VARIANT(name, device, dtypes, fits) \
  WEFT_VARIANT_ROW(MultiTensorNormProblem, name, device, dtypes, fits)
  static constexpr Variant<MultiTensorNormProblem> kVariants[] = {
#include "kernels/multi_tensor_norm/multi_tensor_norm.inc"
  };
#undef WEFT_VARIANT
  static constexpr Op<MultiTensorNormProblem> kOp = {"multi_tensor_norm", kVariants};
  return kOp;
}

void multi_tensor_norm(const MultiTensorNormProblem& problem) {
  dispatch(multi_tensor_norm_op(), problem);
}

std::string MultiTensorNormProblem::describe() const {
  return fmt::format("multi_tensor_norm({} tensors)", tensors.size());
}

}  // namespace weft::kernels
