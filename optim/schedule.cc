#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <utility>

#include "io/json_field.h"

namespace weft::optim {
namespace {

void check_steps(std::string_view schedule, int64_t steps) {
  WEFT_CHECK(steps > 0, "{}: the number of steps must be positive, got {}", schedule, steps);
}

/// From a to b along half a cosine; t in [0, 1].
double half_cosine(double a, double b, double t) {
  return b + (a - b) * (1 + std::cos(std::numbers::pi * t)) / 2;
}
double straight(double a, double b, double t) { return a + (b - a) * t; }

/// How much of the steps is done, at most all.
double share(int64_t step, int64_t steps) {
  return static_cast<double>(std::min(step, steps)) / static_cast<double>(steps);
}

}  // namespace

Schedule constant() {
  return [](int64_t) { return 1.0; };
}

Schedule linear(int64_t steps, double start, double end) {
  check_steps("linear", steps);
  return [=](int64_t step) { return straight(start, end, share(step, steps)); };
}

Schedule cosine(int64_t steps, double end) {
  check_steps("cosine", steps);
  return [=](int64_t step) { return half_cosine(1, end, share(step, steps)); };
}

Schedule exponential(double gamma) {
  WEFT_CHECK(gamma > 0, "exponential: gamma must be positive, got {}", gamma);
  return [=](int64_t step) { return std::pow(gamma, static_cast<double>(step)); };
}

Schedule staircase(int64_t every, double gamma) {
  check_steps("staircase", every);
  WEFT_CHECK(gamma > 0, "staircase: gamma must be positive, got {}", gamma);
  return [=](int64_t step) { return std::pow(gamma, static_cast<double>(step / every)); };
}

Schedule one_cycle(int64_t steps, const OneCycleOptions& options) {
  check_steps("one_cycle", steps);
  WEFT_CHECK(options.warmup_fraction >= 0 && options.warmup_fraction <= 1,
             "one_cycle: the warm-up fraction must lie in [0, 1], got {}", options.warmup_fraction);
  WEFT_CHECK(options.div_factor > 0 && options.final_div_factor > 0,
             "one_cycle: the division factors must be positive, got {} and {}", options.div_factor,
             options.final_div_factor);
  const double first = 1 / options.div_factor, last = first / options.final_div_factor;
  // As PyTorch: the peak lies at a fractional step, and the last step is steps - 1.
  const double peak = options.warmup_fraction * static_cast<double>(steps) - 1;
  const double end = static_cast<double>(steps) - 1;
  const auto anneal = options.linear ? straight : half_cosine;
  return [=](int64_t step) {
    const double s = std::min(static_cast<double>(step), end);
    if (s <= peak) return anneal(first, 1, peak > 0 ? s / peak : 1);
    return anneal(1, last, end > peak ? (s - peak) / (end - peak) : 1);
  };
}

Schedule sequential(std::vector<Schedule> schedules, std::vector<int64_t> milestones) {
  WEFT_CHECK(!schedules.empty() && milestones.size() + 1 == schedules.size(),
             "sequential: {} schedules need one milestone less, got {}", schedules.size(),
             milestones.size());
  WEFT_CHECK(std::is_sorted(milestones.begin(), milestones.end()),
             "sequential: the milestones must not decrease");
  return [=](int64_t step) {
    const auto next = std::upper_bound(milestones.begin(), milestones.end(), step);
    const int64_t begin = next == milestones.begin() ? 0 : *(next - 1);
    return schedules[next - milestones.begin()](step - begin);
  };
}

Schedule per_epoch(Schedule schedule, int64_t steps_per_epoch) {
  check_steps("per_epoch", steps_per_epoch);
  return [=](int64_t step) { return schedule(step / steps_per_epoch); };
}

Scheduler::Scheduler(Optimizer& optimizer, Schedule schedule)
    : optimizer_(optimizer), schedule_(std::move(schedule)) {
  for (const ParameterGroup& group : optimizer.groups()) base_.push_back(group["lr"]);
  apply();
}

void Scheduler::apply() {
  WEFT_CHECK(base_.size() == optimizer_.groups().size(),
             "Scheduler: the optimizer had {} parameter groups and now has {}", base_.size(),
             optimizer_.groups().size());
  const double factor = schedule_(step_);
  for (size_t i = 0; i < base_.size(); ++i) optimizer_.groups()[i]["lr"] = base_[i] * factor;
}

void Scheduler::step() {
  if (optimizer_.was_skipped()) return;
  ++step_;
  apply();
}

std::vector<double> Scheduler::get_last_lr() const { return optimizer_.learning_rates(); }

nlohmann::json Scheduler::state_dict() const { return {{"step", step_}, {"base_lr", base_}}; }

void Scheduler::load_state_dict(const nlohmann::json& state) {
  int64_t step = 0;
  std::vector<double> base;
  try {
    io::read_field(state, "step", step);
    io::read_field(state, "base_lr", base);
  } catch (const Error& e) {
    WEFT_FAIL("Scheduler: malformed state: {}", e.what());
  }
  WEFT_CHECK(step >= 0 && base.size() == base_.size(),
             "Scheduler: the state is of step {} and {} parameter groups, expected {} groups", step,
             base.size(), base_.size());
  step_ = step;
  base_ = std::move(base);
  apply();
}

}  // namespace weft::optim
