#include "kernels/multi_tensor_unscale/multi_tensor_unscale.h"

namespace weft::kernels {

#define WEFT_VARIANT(name, device, dtypes, fits) \
  WEFT_DECLARE_VARIANT(MultiTensorUnscaleProblem, name)
#include "kernels/multi_tensor_unscale/multi_tensor_unscale.inc"
#undef WEFT_VARIANT

const Op<MultiTensorUnscaleProblem>& multi_tensor_unscale_op() {
#define WEFT_VARIANT(name, device, dtypes, fits) \
  WEFT_VARIANT_ROW(MultiTensorUnscaleProblem, name, device, dtypes, fits)
  static constexpr Variant<MultiTensorUnscaleProblem> kVariants[] = {
#include "kernels/multi_tensor_unscale/multi_tensor_unscale.inc"
  };
#undef WEFT_VARIANT
  static constexpr Op<MultiTensorUnscaleProblem> kOp = {"multi_tensor_unscale", kVariants};
  return kOp;
}

void multi_tensor_unscale(const MultiTensorUnscaleProblem& problem) {
  dispatch(multi_tensor_unscale_op(), problem);
}

std::string MultiTensorUnscaleProblem::describe() const {
  return fmt::format("multi_tensor_unscale({} tensors, factor={})", tensors.size(),
                     factor_from.defined() ? "from memory" : fmt::format("{}", factor));
}

}  // namespace weft::kernels
