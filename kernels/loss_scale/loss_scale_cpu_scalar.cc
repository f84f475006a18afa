// Four numbers.
#include "kernels/loss_scale/loss_scale.h"

namespace weft::kernels {

void loss_scale_cpu_scalar(const LossScaleProblem& p) {
  float& scale = *p.scale.data<float>();
  int64_t* const trackers = p.trackers.data<int64_t>();
  const LossScaleState next =
      next_loss_scale(p.rule, {scale, trackers[0], trackers[1]}, *p.found_inf.data<float>() != 0);
  scale = next.scale;
  trackers[0] = next.growth_tracker;
  trackers[1] = next.hysteresis_left;
  *p.inverse.data<float>() = inverse_loss_scale(scale);
}

}  // namespace weft::kernels
