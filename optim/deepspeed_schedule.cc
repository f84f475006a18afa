// The optimizer's step k, counted from 0, goes by what the scheduler makes of batch k - 1, and step
// 0 by its lowest rate.
#include "optim/deepspeed_schedule.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "core/error.h"
#include "io/checked_json.h"
#include "io/json_field.h"
#include "io/section.h"

namespace weft::optim {
namespace {

using Factor = std::function<double(int64_t)>;

double not_negative(io::Section& params, const char* key, double usual) {
  const double value = params.number(key).value_or(usual);
  if (value < 0) params.fail(key, "a number that is not negative");
  return value;
}

double positive(io::Section& params, const char* key, double usual) {
  const double value = params.number(key).value_or(usual);
  if (params.has(key) && value <= 0) params.fail(key, "a positive number");
  return value;
}

/// 0 to 1 over so many batches, along a logarithm or a straight line.
Factor rise_of(io::Section& params, double steps) {
  const bool is_linear =
      params.choice("warmup_type", {"log", "linear"}).value_or("log") == "linear";
  return [=](int64_t batch) {
    const auto b = static_cast<double>(batch);
    if (b >= steps) return 1.0;
    return is_linear ? b / steps : std::log(b + 1) / std::log(steps);
  };
}

/// A rate that rises, and then stays or goes down to `end`.
Factor warmup(const std::string& type, io::Section& params, const ScheduleOfRun& run) {
  const bool decays = type == "WarmupDecayLR", is_cosine = type == "WarmupCosineLR";
  const double steps = params.is_auto("warmup_num_steps")
                           ? static_cast<double>(run.warmup)
                           : not_negative(params, "warmup_num_steps", 1000);
  const double begin = std::max(2.0, steps);
  const double total = positive(params, "total_num_steps", static_cast<double>(run.steps));
  const double rest = std::max(1.0, total - begin);
  const double first = is_cosine ? 0 : not_negative(params, "warmup_min_lr", 0) / run.lr;
  // The rate itself is the run's.
  if (!is_cosine) positive(params, "warmup_max_lr", 0);
  const double low = is_cosine ? not_negative(params, "warmup_min_ratio", 0) : first;
  const double end = is_cosine ? not_negative(params, "cos_min_ratio", 1e-4) : first;
  const Factor rise = rise_of(params, begin);
  if (total == 0 && (decays || is_cosine)) {
    const std::string fault = params.fault("total_num_steps", "a number of steps");
    return [=](int64_t) -> double { throw Error(fault); };
  }
  return [=](int64_t step) {
    if (step == 0) return first;
    const auto b = static_cast<double>(step - 1);
    if (b < begin || !(decays || is_cosine)) return low + (1 - low) * rise(step - 1);
    const double left =
        is_cosine ? (1 + std::cos(std::numbers::pi * std::min(1.0, (b - begin + 1) / rest))) / 2
                  : std::max(0.0, (total - b) / rest);
    return end + (1 - end) * left;
  };
}

/// Up and down again in a cycle of two straight lines, or of two stairs, and on from there.
Factor one_cycle(io::Section& params, const ScheduleOfRun& run) {
  const double first = not_negative(params, "cycle_min_lr", 0) / run.lr;
  positive(params, "cycle_max_lr", 0);  // the run's rate
  const double up = positive(params, "cycle_first_step_size", 2000);
  const double down = positive(params, "cycle_second_step_size", up);
  const double stairs_up = not_negative(params, "cycle_first_stair_count", 0);
  const double stairs_down = not_negative(params, "cycle_second_stair_count", stairs_up);
  const double after = not_negative(params, "decay_lr_rate", 0);
  const double every = not_negative(params, "decay_step_size", 0);
  params.known({"cycle_momentum", "cycle_min_mom", "cycle_max_mom", "decay_mom_rate"});
  return [=](int64_t step) {
    const auto b = static_cast<double>(step);
    if (b > up + down && every > 0) return first / (1 + after * (b - up - down) / every);
    const bool rises = b <= up;
    const double stairs = rises ? stairs_up : stairs_down;
    const double done = rises ? b : std::max(0.0, up + down - b), of = rises ? up : down;
    const double height = stairs > 0 ? std::floor(done * stairs / of) / stairs : done / of;
    return first + (1 - first) * height;
  };
}

}  // namespace

const std::vector<std::string>& deepspeed_schedulers() {
  static const auto& all =
      *new std::vector<std::string>{"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle"};
  return all;
}

Factor deepspeed_schedule(const std::string& setting, const ScheduleOfRun& run,
                          const std::string& origin) {
  const nlohmann::json scheduler = io::parse_json(setting, origin);
  io::Section section(origin, "scheduler", scheduler);
  const auto type = section.choice("type", deepspeed_schedulers());
  if (!type) section.fail("type", "the name of a scheduler");
  io::Section params = section.section("params");
  const Factor factor = *type == "OneCycle" ? one_cycle(params, run) : warmup(*type, params, run);
  params.known({"last_batch_iteration"});
  params.finish();
  section.finish();
  return factor;
}

bool goes_by_all_steps(const std::string& setting) {
  const nlohmann::json scheduler = io::parse_json(setting, "schedule");
  const auto params = scheduler.value("params", nlohmann::json::object());
  const auto is_auto = [&](const char* key) {
    return params.value(key, nlohmann::json()) == "auto";
  };
  const bool ends =
      scheduler.at("type") == "WarmupDecayLR" || scheduler.at("type") == "WarmupCosineLR";
  return is_auto("warmup_num_steps") ||
         (ends && (is_auto("total_num_steps") || !params.contains("total_num_steps")));
}

std::string schedule_name(const std::string& setting) {
  if (!is_deepspeed_schedule(setting)) return setting;
  return "DeepSpeed's " + io::field<std::string>(io::parse_json(setting, "schedule"), "type");
}

}  // namespace weft::optim
