#include "autograd/fp8.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/resting.h"
#include "kernels/fp8_quantize/fp8_quantize.h"

namespace weft {
namespace {

thread_local std::optional<Fp8Scaling> in_force;

constexpr const char* kRoles[] = {"input", "weight", "gradient"};

DType format_of(Fp8Scaling::Role role) {
  return role == Fp8Scaling::Role::kGradient ? DType::f8e5m2 : DType::f8e4m3;
}

}  // namespace

Fp8Scope::Fp8Scope(std::optional<Fp8Scaling> scaling) : ScopedValue(in_force, std::move(scaling)) {}

const std::optional<Fp8Scaling>& fp8_in_force() { return in_force; }

Fp8Scaling::Fp8Scaling(const Fp8Options& options)
    : state_(std::make_shared<State>(State{.options = options})) {
  WEFT_CHECK(options.history > 0, "Fp8Scaling: history must be positive, got {}", options.history);
  WEFT_CHECK(options.margin >= 0 && options.margin <= 16,
             "Fp8Scaling: margin must lie in [0, 16], got {}", options.margin);
}

double Fp8Scaling::scale_for(float amax, DType format, double previous) const {
  if (!(amax > 0) || !std::isfinite(amax)) return previous;
  const auto scale =
      static_cast<float>(std::ldexp(kernels::fp8_max(format) / amax, -options().margin));
  return std::isfinite(scale) ? scale : std::numeric_limits<float>::max();
}

Fp8Scaling::Quantized Fp8Scaling::quantize(const Tensor& weight, Role role, const Tensor& x) const {
  // Handles on what is no leaf come and go, and others have their addresses.
  const bool has_slot = is_leaf(weight);
  Slot passing;
  Slot& slot = has_slot ? state_->slots[weight.id()][static_cast<size_t>(role)] : passing;
  const bool is_weight = role == Role::kWeight;
  // One that rests in the format is its codes already.
  if (const LowBits bits = is_weight ? current_bits(DType::f8e4m3, x) : LowBits();
      bits.codes.defined()) {
    return {bits.codes, std::ldexp(1.0, -bits.exponent)};
  }
  // What an evaluation meets is no part of a step. Gradients come without a tape of their own.
  const bool is_remembered = role == Role::kGradient || grad_enabled();
  const auto remember = [&](float largest) {
    if (!is_remembered) return;
    slot.was_met = true;
    // A NaN stays until the step ends.
    slot.amax = std::isnan(slot.amax) || slot.amax > largest ? slot.amax : largest;
  };
  if (is_weight && slot.cached.codes.defined() && slot.version == x.version() &&
      slot.offset == x.offset() && slot.source.lock() == x.storage()) {
    remember(slot.cached_amax);
    return slot.cached;
  }
  const bool is_current = options().scaling == Fp8Options::Scaling::kCurrent || !has_slot;
  const Tensor amax = Tensor::empty({}, DType::f32, x.device());
  if (is_current) {
    kernels::fp8_quantize({.x = x, .amax = amax});
    const auto share = state_->largest_of_ranks.find(weight.id());
    if (share != state_->largest_of_ranks.end()) share->second(amax);
    slot.scale = scale_for(static_cast<float>(amax.item()), format_of(role), slot.scale);
  }
  Quantized result{Tensor::empty(x.shape(), format_of(role), x.device()), 1 / slot.scale};
  // A weight's codes may be taken by a step later.
  const bool is_measured = !is_current && (is_remembered || is_weight);
  kernels::fp8_quantize(
      {.x = x, .y = result.codes, .amax = is_measured ? amax : Tensor(), .scale = slot.scale});
  const float largest = is_measured ? static_cast<float>(amax.item()) : 0;
  remember(largest);
  if (is_weight) {
    slot.cached = result;
    slot.cached_amax = largest;
    slot.source = x.storage();
    slot.offset = x.offset();
    slot.version = x.version();
  }
  return result;
}

void Fp8Scaling::share(const Tensor& weight,
                       std::function<void(const Tensor& amax)> largest_of_ranks) const {
  state_->largest_of_ranks[weight.id()] = std::move(largest_of_ranks);
}

double Fp8Scaling::scale(const Tensor& weight, Role role) const {
  const auto slots = state_->slots.find(weight.id());
  return slots == state_->slots.end() ? 1 : slots->second[static_cast<size_t>(role)].scale;
}

void Fp8Scaling::update() {
  for (auto& [weight, slots] : state_->slots) {
    for (size_t role = 0; role < slots.size(); ++role) {
      Slot& slot = slots[role];
      slot.cached = {};
      if (options().scaling == Fp8Options::Scaling::kCurrent || !slot.was_met) continue;
      slot.history.insert(slot.history.begin(), slot.amax);
      if (static_cast<int64_t>(slot.history.size()) > options().history) slot.history.pop_back();
      slot.amax = 0;
      if (!std::ranges::all_of(slot.history, [](float x) { return std::isfinite(x); })) continue;
      slot.scale = scale_for(*std::ranges::max_element(slot.history),
                             format_of(static_cast<Role>(role)), slot.scale);
    }
  }
}

Tensor Fp8Scaling::step_amax(const NamedTensors& parameters) const {
  const Tensor all = Tensor::full({static_cast<int64_t>(parameters.size()), 3}, -1);
  float* amax = all.data<float>();
  for (const auto& [name, parameter] : parameters) {
    const auto slots = state_->slots.find(parameter.id());
    for (size_t role = 0; role < 3; ++role, ++amax) {
      if (slots != state_->slots.end() && slots->second[role].was_met)
        *amax = slots->second[role].amax;
    }
  }
  return all;
}

void Fp8Scaling::set_step_amax(const Tensor& all, const NamedTensors& parameters) {
  WEFT_CHECK(all.dtype() == DType::f32 && all.is_contiguous() &&
                 all.shape() == (Shape{static_cast<int64_t>(parameters.size()), 3}),
             "Fp8Scaling: expected amax f32 [{}, 3], got {}", parameters.size(), all);
  const float* amax = all.data<float>();
  for (const auto& [name, parameter] : parameters) {
    for (size_t role = 0; role < 3; ++role, ++amax) {
      if (*amax < 0) continue;
      // Where another rank has met it, its history is kept here too.
      Slot& slot = state_->slots[parameter.id()][role];
      slot.amax = *amax;
      slot.was_met = true;
    }
  }
}

NamedTensors Fp8Scaling::state_dict(const NamedTensors& parameters) const {
  NamedTensors state;
  if (options().scaling == Fp8Options::Scaling::kCurrent) return state;
  for (const auto& [name, parameter] : parameters) {
    const auto slots = state_->slots.find(parameter.id());
    if (slots == state_->slots.end()) continue;
    for (size_t role = 0; role < 3; ++role) {
      const Slot& slot = slots->second[role];
      if (!slot.was_met) continue;
      std::vector<float> values = {static_cast<float>(slot.scale)};
      values.insert(values.end(), slot.history.begin(), slot.history.end());
      state.emplace_back(fmt::format("{}.fp8_{}", name, kRoles[role]),
                         Tensor::from(values, {static_cast<int64_t>(values.size())}));
    }
  }
  return state;
}

void Fp8Scaling::load_state_dict(const NamedTensors& state, const NamedTensors& parameters) {
  std::unordered_map<const void*, std::array<Slot, 3>> slots;
  size_t used = 0;
  for (const auto& [name, parameter] : parameters) {
    for (size_t role = 0; role < 3; ++role) {
      const std::string key = fmt::format("{}.fp8_{}", name, kRoles[role]);
      const auto entry =
          std::ranges::find_if(state, [&](const auto& item) { return item.first == key; });
      if (entry == state.end()) continue;
      const Tensor& values = entry->second;
      WEFT_CHECK(values.dim() == 1 && values.dtype() == DType::f32 && values.numel() > 0 &&
                     values.numel() <= options().history + 1,
                 "Fp8Scaling: \"{}\" in the state is {}, expected f32 [1 + n] with n up to {}", key,
                 values, options().history);
      const std::vector<double> numbers = values.to_vector();
      WEFT_CHECK(std::isfinite(numbers[0]) && numbers[0] > 0,
                 "Fp8Scaling: \"{}\" in the state has the scale {}", key, numbers[0]);
      Slot& slot = slots[parameter.id()][role];
      slot.scale = numbers[0];
      slot.history.assign(numbers.begin() + 1, numbers.end());
      slot.was_met = true;
      ++used;
    }
  }
  WEFT_CHECK(used == state.size(), "Fp8Scaling: the state holds tensors of other parameters");
  state_->slots = std::move(slots);
}

}  // namespace weft
