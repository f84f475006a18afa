// The loss scale of fp16 training brought up to date after a step, where the step runs: a captured
// one (core/graph.h) asks no host.
//
//   state = next_loss_scale(rule, state, found_inf != 0)     (loss_scale_rule.h)
//   inverse = 1 / scale
//
// scale: f32 [], and trackers: i64 [2], {growth_tracker, hysteresis_left}, are read and written;
// inverse: f32 [], is assigned (=); found_inf: f32 []. All contiguous, on one device.
#pragma once

#include "kernels/loss_scale/loss_scale_rule.h"
#include "kernels/op.h"

namespace weft::kernels {

struct LossScaleProblem {
  Tensor scale, trackers, inverse;
  Tensor found_inf;
  LossScaleRule rule = {};

  DType dtype() const { return scale.dtype(); }
  Device device() const { return scale.device(); }
  std::string describe() const {
    return fmt::format("loss_scale(growth_factor={}, backoff_factor={}, growth_interval={})",
                       rule.growth_factor, rule.backoff_factor, rule.growth_interval);
  }
};

WEFT_DECLARE_OP(loss_scale, LossScaleProblem);

}  // namespace weft::kernels
