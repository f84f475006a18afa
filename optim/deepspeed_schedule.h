// DeepSpeed's schedulers, by their own steps (deepspeed/runtime/lr_schedules.py).
//
// A run's setting `schedule` is the name of one of ours or the JSON of one of these, so that its
// checkpoints carry it:
//
//   {"type": "WarmupLR", "params": {"warmup_num_steps": 100}}
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace weft::optim {

/// What a run says where the JSON leaves it to the run, by "auto".
struct ScheduleOfRun {
  double lr = 1;       // that the factors are of
  int64_t steps = 0;   // 0: nobody knows
  int64_t warmup = 0;  // of these
};

/// WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle.
const std::vector<std::string>& deepspeed_schedulers();

/// Whether a setting `schedule` is one of these, and not a name.
inline bool is_deepspeed_schedule(const std::string& setting) { return setting.starts_with('{'); }
/// The factor on the learning rate at each step. Throws Error naming where the setting comes from
/// and what is wrong with it; the function throws one where it needs all steps and nobody knows
/// them.
std::function<double(int64_t step)> deepspeed_schedule(const std::string& setting,
                                                       const ScheduleOfRun& run,
                                                       const std::string& origin = "schedule");
/// Whether such a setting leaves to the run what follows from the number of its steps.
bool goes_by_all_steps(const std::string& setting);
/// For people: "DeepSpeed's WarmupLR"; of any other setting the setting.
std::string schedule_name(const std::string& setting);

}  // namespace weft::optim
