// Loss scaling for fp16: PyTorch's GradScaler, state machine, arithmetic and errors alike.
//
//   optim::GradScaler scaler;
//   ...
//   optimizer.zero_grad();
//   backward(scaler.scale(loss));
//   const double norm = scaler.unscale(optimizer);                    // optional, for clipping
//   scaler.step(optimizer, optim::clip_coefficient(norm, max_norm));  // skipped on an infinity
//   scaler.update();
//
// Gradients of fp16 activations below 2^-25 vanish; those of a loss multiplied by S survive down to
// 2^-25 / S (Micikevicius et al., "Mixed Precision Training", arXiv:1710.03740). S, an f32, is
// halved, and the step skipped, whenever a gradient is infinite or NaN, and doubled after 2000
// steps without. `hysteresis` and `min_scale` make DeepSpeed's dynamic loss scale of it.
//
// Each optimizer goes READY -unscale-> UNSCALED -step-> STEPPED -update-> READY; step unscales what
// is still READY. A second unscale, an unscale after step, and a second step are Errors, as are
// fp16 gradients (master weights are f32), and a step or an update with nothing checked before.
//
// A step with all of that can be part of a captured graph (core/graph.h), which keeps the scale and
// what was found on the device, moves them itself and leaves the parameters alone where the step is
// to be skipped. The host learns of it between two launches, and moves its own copy by the same
// rule (kernels/loss_scale):
//
//   graph.capture([&] { ...; backward(scaler.scale(loss)); scaler.step(optimizer);
//                       scaler.update(); });
//   for (...) { optimizer.set_lr(...); scaler.advance(optimizer); graph.launch(); }
//   scaler.settle(optimizer);
//
// Where the graph ends with backward, bring() takes the place of advance(), and unscale, step and
// update follow the launch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <unordered_map>

#include "core/graph.h"
#include "kernels/loss_scale/loss_scale_rule.h"
#include "optim/optimizer.h"

namespace weft::optim {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;        // > 1
  double backoff_factor = 0.5;     // in (0, 1)
  int64_t growth_interval = 2000;  // steps without an infinity before the scale grows
  bool enabled = true;             // false: every call passes through
  /// Steps with an infinity that it takes to shrink the scale; those used up are given back when
  /// the scale grows. DeepSpeed's default is 2.
  int64_t hysteresis = 1;
  /// The least scale; DeepSpeed's default is 1. 0: none, as in PyTorch.
  double min_scale = 0;
};

class GradScaler {
 public:
  /// Throws Error for an option out of range.
  explicit GradScaler(const GradScalerOptions& options = {});

  /// loss * S, recorded; f32 for narrower losses.
  Tensor scale(const Tensor& loss);
  /// Before the launch of a graph that has scale() alone, the rest being run after it as ever: the
  /// scale as it is now is what the graph reads. Nothing when disabled.
  void bring();
  /// Divides the optimizer's gradients by S in place, notes whether one was infinite or NaN, and
  /// returns their common norm afterwards: one pass over memory.
  double unscale(Optimizer& optimizer);
  /// The same, where the norm, f64 [], stays on the device: nobody waits for it. Undefined when
  /// there are no gradients.
  Tensor unread_unscale(Optimizer& optimizer);
  /// optimizer.step(gradient_scale, gate), unless an infinity was found: then false, and nothing
  /// changed. The device decides that; step() waits for it when all is submitted. Inside a capture
  /// true: settle() tells of a launch.
  bool step(Optimizer& optimizer, double gradient_scale = 1, const kernels::StepGate& gate = {});
  /// The next step's scale, from what the optimizers found. Throws Error, changing nothing, when it
  /// would fall below min_scale: no scale helps gradients that are infinite of themselves.
  void update();
  /// The same with a scale of the caller's choice.
  void update(double new_scale);

  /// optimizer.advance() before the launch of a captured step, after settle() of the one before.
  /// Throws Error without a captured step, and what settle() throws.
  void advance(Optimizer& optimizer, double gradient_scale = 1);
  /// Waits for the launch since the last advance(), unless it is settled, and counts what it found,
  /// as update() does, throwing as it does. False when the launch skipped its step.
  bool settle(Optimizer& optimizer);

  /// What unscale found: 0, or 1 for an infinity. Where the gradients are sharded, the ranks take
  /// the maximum of theirs and set it between unscale and step, so that all skip or none does.
  double found_inf(const Optimizer& optimizer) const;
  void set_found_inf(const Optimizer& optimizer, double found_inf);

  /// Makes an optimizer READY again: the gradients that were unscaled have been dropped, or it is
  /// gone and another may come to lie in its place.
  void forget(const Optimizer* optimizer) { states_.erase(optimizer); }

  bool is_enabled() const { return options_.enabled; }
  /// S; 1 when disabled.
  double get_scale() const { return options_.enabled ? state_.scale : 1; }
  const GradScalerOptions& options() const { return options_; }

  /// PyTorch's: scale, growth_factor, backoff_factor, growth_interval, _growth_tracker; with
  /// hysteresis also _hysteresis_tracker. {} when disabled. To be taken after update() or settle().
  nlohmann::json state_dict() const;
  /// Throws Error, changing nothing, when the state is malformed or empty; ignored when disabled.
  void load_state_dict(const nlohmann::json& state);

 private:
  enum class Stage { kReady, kUnscaled, kStepped };
  struct OptimizerState {
    Stage stage = Stage::kReady;
    bool is_checked = false;  // unscale met a gradient
    Tensor found_inf;         // f32 []; undefined: 0
    Tensor norm;              // f64 []
  };

  /// What a captured step reads, and moves where update() is part of it.
  struct Captured {
    const DeviceGraph* graph = nullptr;
    Tensor scale, inverse, found_inf;  // f32 []
    Tensor trackers;                   // i64 [2]
    bool is_current = false;           // the device has the host's state, or will by itself
    bool is_launched = false;          // since then a launch moved it
  };

  void check_scaled(std::string_view function) const;
  kernels::LossScaleRule rule() const;
  void move_on(bool found_inf);
  void apply_unscale(Optimizer& optimizer, OptimizerState& state) const;
  static bool has_found(OptimizerState& state);

  GradScalerOptions options_;
  kernels::LossScaleState state_;
  bool has_scaled_ = false;
  std::unordered_map<const Optimizer*, OptimizerState> states_;  // since the last update
  std::optional<Captured> captured_;
};

}  // namespace weft::optim
