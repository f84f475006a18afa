// PyTorch's update (torch/amp/grad_scaler.py, _amp_update_scale_) written out; the bits are
// specified: the bound is 0.
#include <cmath>

#include "kernels/loss_scale/loss_scale.h"

namespace weft::kernels {

std::vector<Expected> loss_scale_reference(const LossScaleProblem& p) {
  const LossScaleRule& rule = p.rule;
  double scale = p.scale.item(), tracker = p.trackers.to_vector()[0];
  double left = p.trackers.to_vector()[1];
  const auto in_f32 = [](double x) { return static_cast<double>(static_cast<float>(x)); };
  if (p.found_inf.item() != 0) {
    tracker = 0;
    if (left > 1) {
      left -= 1;
    } else {
      scale = std::max(in_f32(scale * rule.backoff_factor), in_f32(rule.min_scale));
    }
  } else {
    tracker += 1;
    if (tracker == static_cast<double>(rule.growth_interval)) {
      const double larger = in_f32(scale * rule.growth_factor);
      scale = std::isinf(larger) ? scale : larger;
      tracker = 0;
      left = static_cast<double>(rule.hysteresis);
    }
  }
  return {{{scale}, {0}}, {{tracker, left}, {0, 0}}, {{in_f32(1 / scale)}, {0}}};
}

}  // namespace weft::kernels
