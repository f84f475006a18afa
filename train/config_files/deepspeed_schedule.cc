// DeepSpeed's schedulers, by their own steps (deepspeed/runtime/lr_schedules.py): the optimizer's
// step k, counted from 0, goes by what the scheduler makes of batch k - 1, and step 0 by its lowest
// rate.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "train/config_files/dialects.h"
#include "train/config_files/section.h"

namespace weft::train {
namespace {

using Factor = std::function<double(int64_t)>;

/// 0 to 1 over so many batches, along a logarithm or a straight line.
Factor rise_of(Section& params) {
  const auto steps = std::max(2.0, params.number("warmup_num_steps").value_or(1000));
  const bool is_linear =
      params.choice("warmup_type", {"log", "linear"}).value_or("log") == "linear";
  return [=](int64_t batch) {
    const auto b = static_cast<double>(batch);
    if (b >= steps) return 1.0;
    return is_linear ? b / steps : std::log(b + 1) / std::log(steps);
  };
}

/// 0 up to 1 and down again, in a cycle of two straight lines, and 0 after it.
Factor triangle(Section& params) {
  const double up = params.number("cycle_first_step_size").value_or(2000);
  const double down = params.number("cycle_second_step_size").value_or(up);
  return [=](int64_t batch) {
    const auto b = static_cast<double>(batch + 1);
    return b <= up ? b / up : std::max(0.0, (up + down - b) / down);
  };
}

}  // namespace

std::function<double(int64_t)> deepspeed_schedule(const std::string& file,
                                                  const nlohmann::json& scheduler, double lr) {
  Section section(file, "scheduler", scheduler);
  const auto type =
      section.choice("type", {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle"});
  Section params = section.section("params");
  const double total = params.number("total_num_steps").value_or(0);
  const double begin = std::max(2.0, params.number("warmup_num_steps").value_or(1000));
  const double rest = std::max(1.0, total - begin);
  Factor factor;
  double first = 0;
  if (type == "OneCycle") {
    first = params.number("cycle_min_lr").value_or(0) / lr;
    const double after = params.number("decay_lr_rate").value_or(0);
    const double every = params.number("decay_step_size").value_or(0);
    const double cycle = params.number("cycle_first_step_size").value_or(2000) +
                         params.number("cycle_second_step_size")
                             .value_or(params.number("cycle_first_step_size").value_or(2000));
    factor = [=, scale = triangle(params)](int64_t batch) {
      const auto b = static_cast<double>(batch);
      if (b < cycle || every == 0) return first + (1 - first) * scale(batch);
      return first / (1 + after * (b - cycle + 1) / every);
    };
  } else if (type == "WarmupCosineLR") {
    const double low = params.number("warmup_min_ratio").value_or(0);
    const double end = params.number("cos_min_ratio").value_or(1e-4);
    factor = [=, rise = rise_of(params)](int64_t batch) {
      const auto b = static_cast<double>(batch);
      if (b < begin) return low + (1 - low) * rise(batch);
      const double done = std::min(1.0, (b - begin + 1) / rest);
      return end + (1 - end) * (1 + std::cos(std::numbers::pi * done)) / 2;
    };
  } else {
    first = params.number("warmup_min_lr").value_or(0) / lr;
    const bool decays = type == "WarmupDecayLR";
    factor = [=, rise = rise_of(params)](int64_t batch) {
      const auto b = static_cast<double>(batch);
      const double up = b < begin || !decays ? rise(batch) : std::max(0.0, (total - b) / rest);
      return first + (1 - first) * up;
    };
  }
  return [=](int64_t step) { return step == 0 ? first : factor(step - 1); };
}

}  // namespace weft::train
