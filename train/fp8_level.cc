#include "train/fp8_level.h"

#include <fmt/ranges.h>

#include "autograd/resting.h"
#include "core/transfer.h"
#include "dist/strategy/strategy_kind.h"
#include "io/nearest.h"
#include "nn/product_weights.h"
#include "optim/optimizer_state.h"

namespace weft::train {

Fp8Level parse_fp8_level(const std::string& name) {
  if (name.empty()) return Fp8Level::kNone;
  if (name == "O1") return Fp8Level::kO1;
  if (name == "O2") return Fp8Level::kO2;
  if (name == "O3") return Fp8Level::kO3;
  WEFT_FAIL("fp8-level: expected O1, O2 or O3, got \"{}\"{}", name,
            io::did_you_mean(name, {"O1", "O2", "O3"}));
}

bool keeps_moments(Fp8Level level) { return level == Fp8Level::kO2 || level == Fp8Level::kO3; }

void check_fp8_level(const std::string& name, const Precision& precision,
                     const dist::StrategyOptions& strategy, int devices) {
  const Fp8Level level = parse_fp8_level(name);
  if (level == Fp8Level::kNone) return;
  WEFT_CHECK(precision.is_fp8(), "fp8-level: {} is of precision fp8, not of {}", name,
             precision.name);
  const auto takes = [&](const dist::StrategyKind& kind) {
    return kind.takes_fp8_level(static_cast<int>(level));
  };
  const dist::StrategyKind& kind = dist::strategy_of(strategy, devices);
  std::vector<std::string> right;
  for (const auto& other : dist::strategies()) {
    if (takes(*other)) right.push_back(other->name);
  }
  WEFT_CHECK(takes(kind), "fp8-level: {} is of strategies {}, not of {}", name,
             fmt::join(right, ", "), kind.name);
  const std::pair<const char*, std::string> settings[] = {
      {"compress-dtype", strategy.compress_dtype},
      {"reduce-dtype", strategy.reduce_dtype},
      {"param-dtype", strategy.param_dtype},
      {"buffer-dtype", strategy.buffer_dtype},
      {"offload-optimizer", strategy.offload_optimizer ? "on" : ""}};
  for (const auto& [setting, value] : settings) {
    WEFT_CHECK(value.empty(), "fp8-level: {} says what is kept and sent; expected no {}, got {}",
               name, setting, value);
  }
}

void LowBitStates::take(nn::Module& module) const {
  if (!keeps_moments(level_)) return;
  const auto in_products = nn::product_weights(module);
  for (const auto& [path, layer] : module.named_modules()) {
    Tensors weights;
    for (const auto& [name, tensor] : layer->named_parameters()) {
      const bool is_own = name.find('.') == name.npos;
      if (!is_own || tensor.dim() != 2 || !in_products.contains(tensor.id())) continue;
      if (!rests(tensor)) rest_in(DType::f16, tensor, MemoryKind::kParameters);
      weights.push_back(tensor);
    }
    if (weights.empty()) continue;
    WEFT_CHECK(!layer->has_stand_in(), "fp8-level: the layer {} was cut or replaced", path);
    layer->set_stand_in([layer = layer, weights, level = level_](const Tensor& x) {
      // Products in fp8 take O3's codes and touch no numbers.
      for (const Tensor& weight : weights) {
        if (level == Fp8Level::kO2) wake(weight);
      }
      const Tensor y = layer->forward(x);
      for (const Tensor& weight : weights) let_go(weight);
      return y;
    });
  }
}

void LowBitStates::check(const optim::Optimizer& optimizer) const {
  WEFT_CHECK(!keeps_moments(level_) || optimizer.kind() == "AdamW" || optimizer.kind() == "Adam",
             "fp8-level O{}: keeps Adam's moments in few bits; {} has others",
             static_cast<int>(level_), optimizer.kind());
}

bool LowBitStates::step(optim::Optimizer& optimizer, const kernels::StepGate& gate,
                        const std::function<bool(double coefficient)>& step) {
  const auto here = [](const Tensor& x) { return x.defined() ? to_device(x, Device{}) : x; };
  const kernels::StepGate read = {here(gate.skip), here(gate.norm), gate.max_norm,
                                  gate.needs_finite};
  const kernels::OpenedGate opened(read);
  const bool is_closed = opened.is_closed();
  const double coefficient = opened.coefficient();
  const Tensors parameters = optimizer.parameters();
  Tensors gradients;
  for (const Tensor& p : parameters) {
    gradients.push_back(p.grad());
    p.set_grad({});
  }
  adopt_states(optimizer);  // those of a state that was loaded
  bool is_taken = true;
  for (size_t i = 0; i < parameters.size() && !is_closed; ++i) {
    const Tensor &p = parameters[i], &gradient = gradients[i];
    if (!gradient.defined() || !rests(gradient)) continue;
    p.set_grad(gradient);
    wake(p);
    wake(gradient);
    for (const Tensor& state : states_[p.id()]) wake(state);
    is_taken = step(coefficient) && is_taken;
    p.set_grad({});
    let_go(gradient);
    rest(p);
    if (rests(p) && states_[p.id()].empty()) adopt_states(optimizer);
    for (const Tensor& state : states_[p.id()]) rest(state);
  }
  for (size_t i = 0; i < parameters.size() && !is_closed; ++i) {
    const Tensor& gradient = gradients[i];
    if (gradient.defined() && !rests(gradient)) parameters[i].set_grad(gradient);
  }
  is_taken = step(coefficient) && is_taken;
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].set_grad(gradients[i]);
  return is_taken;
}

/// Has the states of parameters that rest do so, too.
void LowBitStates::adopt_states(const optim::Optimizer& optimizer) {
  if (!keeps_moments(level_)) return;
  std::unordered_map<std::string, Tensor> by_name;
  for (const optim::ParameterGroup& group : optimizer.groups()) {
    for (const auto& [name, parameter] : group.parameters) {
      if (rests(parameter)) by_name.emplace(name, parameter);
    }
  }
  states_.clear();
  for (const auto& [name, tensor] : optimizer.state_dict().tensors) {
    const size_t dot = name.rfind('.');
    const auto parameter = by_name.find(name.substr(0, dot));
    const std::string kind = name.substr(dot + 1);
    if (parameter == by_name.end() || kind == "step") continue;
    if (!rests(tensor)) {
      rest_in(kind == "exp_avg_sq" ? DType::f16 : DType::f8e4m3, tensor, MemoryKind::kOptimizer);
    }
    states_[parameter->second.id()].push_back(tensor);
  }
}

}  // namespace weft::train
