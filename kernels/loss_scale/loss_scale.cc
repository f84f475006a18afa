#include "kernels/loss_scale/loss_scale.h"

namespace weft::kernels {

#define WEFT_VARIANT(name, device, dtypes, fits) WEFT_DECLARE_VARIANT(LossScaleProblem, name)
#include "kernels/loss_scale/loss_scale.inc"
#undef WEFT_VARIANT

const Op<LossScaleProblem>& loss_scale_op() {
#define WEFT_VARIANT(name, device, dtypes, fits) \
  WEFT_VARIANT_ROW(LossScaleProblem, name, device, dtypes, fits)
  static constexpr Variant<LossScaleProblem> kVariants[] = {
#include "kernels/loss_scale/loss_scale.inc"
  };
#undef WEFT_VARIANT
  static constexpr Op<LossScaleProblem> kOp = {"loss_scale", kVariants};
  return kOp;
}

void loss_scale(const LossScaleProblem& problem) { dispatch(loss_scale_op(), problem); }

std::string LossScaleProblem::describe() const {
  return fmt::format("loss_scale(growth_factor={}, backoff_factor={}, growth_interval={})",
                     rule.growth_factor, rule.backoff_factor, rule.growth_interval);
}

}  // namespace weft::kernels
