#include "optim/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "autograd/ops.h"
#include "core/transfer.h"
#include "io/json_field.h"
#include "kernels/loss_scale/loss_scale.h"
#include "kernels/multi_tensor_scale/multi_tensor_scale.h"
#include "optim/capture.h"
#include "optim/clip.h"

namespace weft::optim {
namespace {

void check(const GradScalerOptions& o) {
  WEFT_CHECK(std::isfinite(o.init_scale) && o.init_scale > 0,
             "GradScaler: init_scale must be positive and finite, got {}", o.init_scale);
  WEFT_CHECK(o.growth_factor > 1, "GradScaler: growth_factor must be greater than 1, got {}",
             o.growth_factor);
  WEFT_CHECK(o.backoff_factor > 0 && o.backoff_factor < 1,
             "GradScaler: backoff_factor must lie between 0 and 1, got {}", o.backoff_factor);
  WEFT_CHECK(o.growth_interval > 0, "GradScaler: growth_interval must be positive, got {}",
             o.growth_interval);
  WEFT_CHECK(o.hysteresis > 0, "GradScaler: hysteresis must be positive, got {}", o.hysteresis);
  WEFT_CHECK(o.min_scale >= 0 && o.min_scale <= o.init_scale,
             "GradScaler: min_scale must lie between 0 and init_scale = {}, got {}", o.init_scale,
             o.min_scale);
}

/// Whether the optimizer's device records work.
bool is_capturing(const Optimizer& optimizer) {
  const Tensors parameters = optimizer.parameters();
  return !parameters.empty() && optim::is_capturing(parameters[0].device());
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options),
      state_{.scale = static_cast<float>(options.init_scale),
             .hysteresis_left = options.hysteresis} {
  if (options.enabled) check(options);
}

Tensor GradScaler::scale(const Tensor& loss) {
  if (!options_.enabled) return loss;
  has_scaled_ = true;
  const Device device = loss.device();
  if (!is_capturing(device)) return ops::mul(loss, ops::full({}, state_.scale, DType::f32, device));
  if (captured_ && captured_->graph == DeviceGraph::capturing()) {
    return ops::mul(loss, captured_->scale);
  }
  WEFT_CHECK(!captured_, "GradScaler: a step is captured once");
  captured_.emplace(Captured{.graph = DeviceGraph::capturing()});
  for (Tensor* t : {&captured_->scale, &captured_->inverse, &captured_->found_inf}) {
    *t = empty_beside_capture({}, DType::f32, device);
  }
  captured_->trackers = empty_beside_capture({2}, DType::i64, device);
  return ops::mul(loss, captured_->scale);
}

void GradScaler::check_scaled(std::string_view function) const {
  WEFT_CHECK(has_scaled_,
             "GradScaler::{}: no loss was scaled yet; call backward(scaler.scale(loss)) first",
             function);
}

void GradScaler::apply_unscale(Optimizer& optimizer, OptimizerState& state) const {
  for (const ParameterGroup& group : optimizer.groups()) {
    for (const auto& [name, parameter] : group.parameters) {
      const Tensor gradient = parameter.grad();
      WEFT_CHECK(!gradient.defined() || gradient.dtype() != DType::f16,
                 "GradScaler: the gradient of \"{}\" is {}; scaled gradients need the range of "
                 "f32: keep f32 weights and use Autocast",
                 name, gradient);
    }
  }
  const Tensors gradients = contiguous_gradients(optimizer.parameters());
  state.stage = Stage::kUnscaled;
  state.is_checked = !gradients.empty();
  state.found_inf = state.norm = {};
  if (gradients.empty()) return;
  const Device device = gradients[0].device();
  if (is_capturing(device)) {
    kernels::multi_tensor_scale({.tensors = gradients,
                                 .factor_from = captured_->inverse,
                                 .found_inf = captured_->found_inf});
    for (const Tensor& gradient : gradients) gradient.bump_version();
    return;
  }
  const Tensor found_inf = Tensor::empty({}, DType::f32, device);
  const Tensor norm = Tensor::empty({}, DType::f64, device);
  const float inverse = kernels::inverse_loss_scale(state_.scale);
  kernels::multi_tensor_scale(
      {.tensors = gradients, .factor = inverse, .found_inf = found_inf, .norm = norm});
  if (inverse != 1) {
    for (const Tensor& gradient : gradients) gradient.bump_version();
  }
  state.found_inf = found_inf;
  state.norm = norm;
}

/// Waits for the device the first time.
bool GradScaler::has_found(OptimizerState& state) {
  if (!state.found_inf.defined()) return false;
  state.found_inf = to_device(state.found_inf, Device{});
  return state.found_inf.item() != 0;
}

double GradScaler::unscale(Optimizer& optimizer) {
  const Tensor norm = unread_unscale(optimizer);
  return norm.defined() ? norm.item() : 0;
}

Tensor GradScaler::unread_unscale(Optimizer& optimizer) {
  if (!options_.enabled) return {};
  check_scaled("unscale");
  WEFT_CHECK(!is_capturing(optimizer),
             "GradScaler::unscale: the norm that it returns is not known inside a capture; call "
             "step alone");
  OptimizerState& state = states_[&optimizer];
  WEFT_CHECK(state.stage != Stage::kUnscaled,
             "GradScaler::unscale: called a second time for this optimizer since the last update");
  WEFT_CHECK(state.stage != Stage::kStepped, "GradScaler::unscale: called after step");
  apply_unscale(optimizer, state);
  return state.norm;
}

bool GradScaler::step(Optimizer& optimizer, double gradient_scale, const kernels::StepGate& gate) {
  if (!options_.enabled) {
    optimizer.step(gradient_scale, gate);
    return true;
  }
  check_scaled("step");
  OptimizerState& state = states_[&optimizer];
  WEFT_CHECK(
      state.stage != Stage::kStepped,
      "GradScaler::step: called a second time for this optimizer since the last update; call "
      "update after each step");
  if (state.stage == Stage::kReady) apply_unscale(optimizer, state);
  WEFT_CHECK(state.is_checked,
             "GradScaler::step: no inf checks were recorded for this optimizer: none of its "
             "parameters has a gradient");
  const bool captures = is_capturing(optimizer);
  const Tensor& found_inf = captures ? captured_->found_inf : state.found_inf;
  kernels::StepGate all = gate;
  if (!gate.skip.defined()) {
    all.skip = found_inf;
  } else if (found_inf.defined()) {
    const NoGrad guard;
    all.skip = ops::add(gate.skip, ops::to(found_inf, gate.skip.device()));
  }
  optimizer.step(gradient_scale, all);
  state.stage = Stage::kStepped;
  if (captures || !has_found(state)) return true;
  optimizer.retract();
  return false;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  check_scaled("update");
  bool is_checked = false, found_inf = false;
  for (auto& [optimizer, state] : states_) {
    is_checked |= state.is_checked;
    found_inf |= has_found(state);
  }
  WEFT_CHECK(is_checked,
             "GradScaler::update: no inf checks were recorded since the last update; call step, or "
             "unscale, first");
  if (captured_ && is_capturing(captured_->scale.device())) {
    WEFT_CHECK(states_.size() == 1, "GradScaler::update: a captured step has one optimizer, got {}",
               states_.size());
    kernels::loss_scale({.scale = captured_->scale,
                         .trackers = captured_->trackers,
                         .inverse = captured_->inverse,
                         .found_inf = captured_->found_inf,
                         .rule = rule()});
  } else {
    move_on(found_inf);
    if (captured_) captured_->is_current = false;
  }
  states_.clear();
}

kernels::LossScaleRule GradScaler::rule() const {
  return {.growth_factor = options_.growth_factor,
          .backoff_factor = options_.backoff_factor,
          .growth_interval = options_.growth_interval,
          .hysteresis = options_.hysteresis,
          .min_scale = options_.min_scale};
}

/// The host's state after a step that found an infinity, or none.
void GradScaler::move_on(bool found_inf) {
  WEFT_CHECK(!found_inf || state_.hysteresis_left > 1 || options_.min_scale == 0 ||
                 state_.scale > static_cast<float>(options_.min_scale),
             "GradScaler: gradients are infinite at the smallest loss scale, {}: the scale cannot "
             "shrink any more; lower the learning rate, or train in bf16",
             options_.min_scale);
  state_ = kernels::next_loss_scale(rule(), state_, found_inf);
}

void GradScaler::advance(Optimizer& optimizer, double gradient_scale) {
  if (!options_.enabled) return optimizer.advance(gradient_scale);
  WEFT_CHECK(captured_, "GradScaler::advance: no step was captured");
  settle(optimizer);
  bring();
  optimizer.advance(gradient_scale);
  captured_->is_launched = true;
}

void GradScaler::bring() {
  if (!options_.enabled) return;
  WEFT_CHECK(captured_, "GradScaler::bring: no loss was scaled inside a capture");
  if (std::exchange(captured_->is_current, true)) return;
  const auto bring = [](double value, const Tensor& to) {
    const NoGrad guard;
    copy_same_layout(ops::full({}, value, DType::f32), to);
  };
  bring(state_.scale, captured_->scale);
  bring(kernels::inverse_loss_scale(state_.scale), captured_->inverse);
  const std::vector<int64_t> trackers = {state_.growth_tracker, state_.hysteresis_left};
  copy_same_layout(Tensor::from(trackers, {2}), captured_->trackers);
}

bool GradScaler::settle(Optimizer& optimizer) {
  if (!captured_ || !captured_->is_launched) return true;
  captured_->is_launched = false;
  const bool found_inf = captured_->found_inf.item() != 0;
  if (found_inf) optimizer.retract();
  // Both move on by the same rule, but where the scale sticks the host's state stays.
  const bool is_current = std::exchange(captured_->is_current, false);
  move_on(found_inf);
  captured_->is_current = is_current;
  return !found_inf;
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) return;
  check_scaled("update");
  const auto scale = static_cast<float>(new_scale);
  WEFT_CHECK(std::isfinite(scale) && scale > 0,
             "GradScaler::update: the scale must be positive and finite, got {}", new_scale);
  state_.scale = scale;
  if (captured_) captured_->is_current = false;
  states_.clear();
}

double GradScaler::found_inf(const Optimizer& optimizer) const {
  const auto state = states_.find(&optimizer);
  if (state == states_.end() || !state->second.found_inf.defined()) return 0;
  return state->second.found_inf.item();
}

void GradScaler::set_found_inf(const Optimizer& optimizer, double found_inf) {
  if (!options_.enabled) return;
  OptimizerState& state = states_[&optimizer];
  WEFT_CHECK(state.stage == Stage::kUnscaled,
             "GradScaler::set_found_inf: to be called between unscale and step");
  state.is_checked = true;  // a rank whose shard is empty takes part in the decision
  state.found_inf = Tensor::scalar(found_inf, DType::f32);
}

nlohmann::json GradScaler::state_dict() const {
  if (!options_.enabled) return nlohmann::json::object();
  nlohmann::json state = {{"scale", state_.scale},
                          {"growth_factor", options_.growth_factor},
                          {"backoff_factor", options_.backoff_factor},
                          {"growth_interval", options_.growth_interval},
                          {"_growth_tracker", state_.growth_tracker}};
  if (options_.hysteresis > 1) state["_hysteresis_tracker"] = state_.hysteresis_left;
  return state;
}

void GradScaler::load_state_dict(const nlohmann::json& state) {
  if (!options_.enabled) return;
  WEFT_CHECK(!state.empty(),
             "GradScaler: the state is empty; was it saved from a disabled GradScaler?");
  GradScalerOptions options = options_;
  int64_t growth_tracker = 0, hysteresis_left = options.hysteresis;
  try {
    io::read_field(state, "scale", options.init_scale);
    io::read_field(state, "growth_factor", options.growth_factor);
    io::read_field(state, "backoff_factor", options.backoff_factor);
    io::read_field(state, "growth_interval", options.growth_interval);
    io::read_field(state, "_growth_tracker", growth_tracker);
    if (constexpr const char* kKey = "_hysteresis_tracker"; state.contains(kKey)) {
      io::read_field(state, kKey, hysteresis_left);
    }
  } catch (const Error& error) {
    WEFT_FAIL("GradScaler: malformed state: {}", error.what());
  }
  check(options);
  WEFT_CHECK(growth_tracker >= 0 && growth_tracker < options.growth_interval,
             "GradScaler: _growth_tracker must lie in [0, growth_interval = {}), got {}",
             options.growth_interval, growth_tracker);
  state_ = {.scale = static_cast<float>(options.init_scale),
            .growth_tracker = growth_tracker,
            .hysteresis_left = std::clamp<int64_t>(hysteresis_left, 1, options.hysteresis)};
  if (captured_) captured_->is_current = false;
  options.init_scale = options_.init_scale;
  options_ = options;
}

}  // namespace weft::optim
