#include "kernels/loss_scale/loss_scale.h"

namespace weft::kernels {

#define WEFT_OP loss_scale
#define WEFT_PROBLEM LossScaleProblem
#include "kernels/op_list_inl.h"

std::string LossScaleProblem::describe() const {
  return fmt::format("loss_scale(growth_factor={}, backoff_factor={}, growth_interval={})",
                     rule.growth_factor, rule.backoff_factor, rule.growth_interval);
}

}  // namespace weft::kernels
