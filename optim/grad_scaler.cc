#include "optim/grad_scaler.h"

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "kernels/multi_tensor_unscale/multi_tensor_unscale.h"

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

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options),
      scale_(static_cast<float>(options.init_scale)),
      hysteresis_left_(options.hysteresis) {
  if (options.enabled) check(options);
}

Tensor GradScaler::scale(const Tensor& loss) {
  if (!options_.enabled) return loss;
  has_scaled_ = true;
  return ops::mul(loss, ops::full({}, scale_, DType::f32, loss.device()));
}

void GradScaler::check_scaled(std::string_view function) const {
  WEFT_CHECK(has_scaled_,
             "GradScaler::{}: no loss was scaled yet; call backward(scaler.scale(loss)) first",
             function);
}

void GradScaler::apply_unscale(Optimizer& optimizer, OptimizerState& state) const {
  Tensors gradients;
  for (const ParameterGroup& group : optimizer.groups()) {
    for (const auto& [name, parameter] : group.parameters) {
      const Tensor gradient = parameter.grad();
      if (!gradient.defined()) continue;
      WEFT_CHECK(gradient.dtype() != DType::f16,
                 "GradScaler: the gradient of \"{}\" is {}; scaled gradients need the range of "
                 "f32: keep f32 weights and use Autocast",
                 name, gradient);
      if (!gradient.is_contiguous()) {
        const NoGrad guard;
        parameter.set_grad(ops::clone(gradient));
      }
      gradients.push_back(parameter.grad());
    }
  }
  state.stage = Stage::kUnscaled;
  state.is_checked = !gradients.empty();
  state.found_inf = state.norm = 0;
  if (gradients.empty()) return;
  const Device device = gradients[0].device();
  const Tensor found_inf = Tensor::empty({}, DType::f32, device);
  const Tensor norm = Tensor::empty({}, DType::f64, device);
  const auto inverse = static_cast<float>(1 / static_cast<double>(scale_));
  kernels::multi_tensor_unscale(
      {.tensors = gradients, .factor = inverse, .found_inf = found_inf, .norm = norm});
  if (inverse != 1) {
    for (const Tensor& gradient : gradients) gradient.bump_version();
  }
  state.found_inf = found_inf.item();
  state.norm = norm.item();
}

double GradScaler::unscale(Optimizer& optimizer) {
  if (!options_.enabled) return 0;
  check_scaled("unscale");
  OptimizerState& state = states_[&optimizer];
  WEFT_CHECK(state.stage != Stage::kUnscaled,
             "GradScaler::unscale: called a second time for this optimizer since the last update");
  WEFT_CHECK(state.stage != Stage::kStepped, "GradScaler::unscale: called after step");
  apply_unscale(optimizer, state);
  return state.norm;
}

bool GradScaler::step(Optimizer& optimizer, double gradient_scale) {
  if (!options_.enabled) {
    optimizer.step(gradient_scale);
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
  const bool steps = state.found_inf == 0;
  if (steps) optimizer.step(gradient_scale);
  state.stage = Stage::kStepped;
  return steps;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  check_scaled("update");
  bool is_checked = false, found_inf = false;
  for (const auto& [optimizer, state] : states_) {
    is_checked |= state.is_checked;
    found_inf |= state.found_inf != 0;
  }
  WEFT_CHECK(is_checked,
             "GradScaler::update: no inf checks were recorded since the last update; call step, or "
             "unscale, first");
  if (found_inf) {
    if (hysteresis_left_ > 1) {
      --hysteresis_left_;
    } else {
      const auto smaller = static_cast<float>(scale_ * options_.backoff_factor);
      const auto least = static_cast<float>(options_.min_scale);
      WEFT_CHECK(options_.min_scale == 0 || scale_ > least,
                 "GradScaler: gradients are infinite at the smallest loss scale, {}: the scale "
                 "cannot shrink any more; lower the learning rate, or train in bf16",
                 options_.min_scale);
      scale_ = std::max(smaller, least);
    }
    growth_tracker_ = 0;
  } else if (++growth_tracker_ == options_.growth_interval) {
    const auto larger = static_cast<float>(scale_ * options_.growth_factor);
    if (std::isfinite(larger)) scale_ = larger;
    growth_tracker_ = 0;
    hysteresis_left_ = options_.hysteresis;
  }
  states_.clear();
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) return;
  check_scaled("update");
  const auto scale = static_cast<float>(new_scale);
  WEFT_CHECK(std::isfinite(scale) && scale > 0,
             "GradScaler::update: the scale must be positive and finite, got {}", new_scale);
  scale_ = scale;
  states_.clear();
}

double GradScaler::found_inf(const Optimizer& optimizer) const {
  const auto state = states_.find(&optimizer);
  return state == states_.end() ? 0 : state->second.found_inf;
}

void GradScaler::set_found_inf(const Optimizer& optimizer, double found_inf) {
  if (!options_.enabled) return;
  OptimizerState& state = states_[&optimizer];
  WEFT_CHECK(state.stage == Stage::kUnscaled,
             "GradScaler::set_found_inf: to be called between unscale and step");
  state.is_checked = true;  // a rank whose shard is empty takes part in the decision
  state.found_inf = found_inf;
}

nlohmann::json GradScaler::state_dict() const {
  if (!options_.enabled) return nlohmann::json::object();
  nlohmann::json state = {{"scale", scale_},
                          {"growth_factor", options_.growth_factor},
                          {"backoff_factor", options_.backoff_factor},
                          {"growth_interval", options_.growth_interval},
                          {"_growth_tracker", growth_tracker_}};
  if (options_.hysteresis > 1) state["_hysteresis_tracker"] = hysteresis_left_;
  return state;
}

void GradScaler::load_state_dict(const nlohmann::json& state) {
  if (!options_.enabled) return;
  WEFT_CHECK(!state.empty(),
             "GradScaler: the state is empty; was it saved from a disabled GradScaler?");
  GradScalerOptions options = options_;
  int64_t growth_tracker = 0, hysteresis_left = options.hysteresis;
  try {
    state.at("scale").get_to(options.init_scale);
    state.at("growth_factor").get_to(options.growth_factor);
    state.at("backoff_factor").get_to(options.backoff_factor);
    state.at("growth_interval").get_to(options.growth_interval);
    state.at("_growth_tracker").get_to(growth_tracker);
    if (state.contains("_hysteresis_tracker")) {
      state.at("_hysteresis_tracker").get_to(hysteresis_left);
    }
  } catch (const nlohmann::json::exception& error) {
    WEFT_FAIL("GradScaler: malformed state: {}", error.what());
  }
  check(options);
  WEFT_CHECK(growth_tracker >= 0 && growth_tracker < options.growth_interval,
             "GradScaler: _growth_tracker must lie in [0, growth_interval = {}), got {}",
             options.growth_interval, growth_tracker);
  scale_ = static_cast<float>(options.init_scale);
  growth_tracker_ = growth_tracker;
  hysteresis_left_ = std::clamp<int64_t>(hysteresis_left, 1, options.hysteresis);
  options.init_scale = options_.init_scale;
  options_ = options;
}

}  // namespace weft::optim
