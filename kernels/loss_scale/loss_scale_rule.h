// How fp16's loss scale S moves: PyTorch's GradScaler, with DeepSpeed's hysteresis and least scale.
//
//   an infinity or NaN met   uses up one of `hysteresis` allowances; the last one shrinks S to
//                            backoff_factor S, but not below min_scale. The tracker starts again.
//   none                     the tracker grows; at growth_interval S becomes growth_factor S unless
//                            that is infinite, the tracker starts again, allowances are given back.
//
// Products are taken in f64 and rounded to f32. Host and device compute it with this one function.
#pragma once

#include <cstdint>
#include <limits>

namespace weft::kernels {

struct LossScaleRule {
  double growth_factor = 2;        // > 1
  double backoff_factor = 0.5;     // in (0, 1)
  int64_t growth_interval = 2000;  // steps without an infinity before S grows
  int64_t hysteresis = 1;
  double min_scale = 0;
};

struct LossScaleState {
  float scale = 65536;
  int64_t growth_tracker = 0;  // steps without an infinity since S changed
  int64_t hysteresis_left = 1;
};

constexpr LossScaleState next_loss_scale(const LossScaleRule& rule, LossScaleState state,
                                         bool found_inf) {
  if (found_inf) {
    state.growth_tracker = 0;
    if (state.hysteresis_left > 1) {
      --state.hysteresis_left;
    } else {
      const auto smaller = static_cast<float>(state.scale * rule.backoff_factor);
      const auto least = static_cast<float>(rule.min_scale);
      state.scale = smaller < least ? least : smaller;
    }
  } else if (++state.growth_tracker == rule.growth_interval) {
    const auto larger = static_cast<float>(state.scale * rule.growth_factor);
    if (larger <= std::numeric_limits<float>::max()) state.scale = larger;
    state.growth_tracker = 0;
    state.hysteresis_left = rule.hysteresis;
  }
  return state;
}

/// What scaled gradients are multiplied by: taken in f64, rounded to f32.
constexpr float inverse_loss_scale(float scale) {
  return static_cast<float>(1 / static_cast<double>(scale));
}

}  // namespace weft::kernels
