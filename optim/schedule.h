// Learning-rate schedules.
//
// A Schedule is a function of the step alone: the factor by which the base learning rate is
// multiplied at step 0, 1, 2, ... Those below equal PyTorch's schedulers of the same names.
//
//   optim::Scheduler scheduler(optimizer, optim::sequential(
//       {optim::linear(500, 0.01, 1), optim::cosine(9500)}, {500}));
//   for (...) { ...; optimizer.step(); scheduler.step(); }
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "optim/optimizer.h"

namespace weft::optim {

using Schedule = std::function<double(int64_t step)>;

/// 1.
Schedule constant();
/// From start to end in a straight line over `steps` steps, then end (LinearLR).
Schedule linear(int64_t steps, double start, double end);
/// Warm-up: from start to 1, then 1.
inline Schedule linear_warmup(int64_t steps, double start) { return linear(steps, start, 1); }
/// end + (1 - end) (1 + cos(pi step / steps)) / 2, then end (CosineAnnealingLR up to `steps`).
Schedule cosine(int64_t steps, double end = 0);
/// gamma^step (ExponentialLR).
Schedule exponential(double gamma);
/// gamma^floor(step / every) (StepLR).
Schedule staircase(int64_t every, double gamma = 0.1);

struct OneCycleOptions {
  double warmup_fraction = 0.3;   // PyTorch's pct_start
  double div_factor = 25;         // the first factor is 1 / div_factor
  double final_div_factor = 1e4;  // the last one is the first divided by this
  bool linear = false;            // straight lines, not half cosines
};
/// Up from 1/div_factor to 1, the base learning rate, then down to almost nothing (OneCycleLR; only
/// the learning rate cycles). Smith, Topin: "Super-Convergence", 2018.
Schedule one_cycle(int64_t steps, const OneCycleOptions& options = {});

/// One schedule after another: number i + 1 begins, at its step 0, at milestone i (SequentialLR).
Schedule sequential(std::vector<Schedule> schedules, std::vector<int64_t> milestones);

/// The schedule counted in epochs of steps_per_epoch steps, constant within each.
Schedule per_epoch(Schedule schedule, int64_t steps_per_epoch);

/// Sets the learning rates of an optimizer: each group's at construction times the schedule.
class Scheduler {
 public:
  Scheduler(Optimizer& optimizer, Schedule schedule);
  /// To be called after each step of the optimizer, that is once for a global batch. Does nothing
  /// when the optimizer left that step out.
  void step();
  int64_t step_count() const { return step_; }
  /// The learning rate of each group, which the next step of the optimizer takes.
  std::vector<double> get_last_lr() const;

  nlohmann::json state_dict() const;
  /// Throws Error when the state is malformed or of another number of groups.
  void load_state_dict(const nlohmann::json& state);

 private:
  void apply();

  Optimizer& optimizer_;
  Schedule schedule_;
  std::vector<double> base_;  // each group's learning rate at factor 1
  int64_t step_ = 0;
};

}  // namespace weft::optim
