#include "kernels/profile.h"

#include <algorithm>

namespace weft::kernels {

Profile::Profile(Device device) : device_(device) {
  synchronize(device_);
  if (device_.type == DeviceType::cuda) start_event_.record(current_stream(device_));
  start_ = Clock::now();
  set_launch_hook(this);
}
Profile::~Profile() { set_launch_hook(nullptr); }

Profile::Thread& Profile::this_thread() {
  const auto [entry, is_new] = threads_.try_emplace(std::this_thread::get_id());
  if (is_new) entry->second.number = static_cast<int>(threads_.size()) - 1;
  return entry->second;
}

void Profile::begin(std::string_view op, std::string_view variant, Device device,
                    const std::string& problem) {
  std::lock_guard lock(mutex_);
  Thread& thread = this_thread();
  const size_t index = launches_.size();
  Launch launch{.op = std::string(op), .variant = std::string(variant), .problem = problem};
  launch.thread = thread.number;
  launch.depth = static_cast<int>(thread.open.size());
  launch.on_device = device.type == DeviceType::cuda && device == device_;
  callers_.push_back(thread.open.empty() ? index : thread.open.back().launch);
  launches_.push_back(std::move(launch));
  Timing* timing = nullptr;
  if (launches_.back().on_device) {
    timing = &pending_.emplace_back(device_);
    timing->launch = index;
    timing->begin.record(current_stream(device_));
  }
  thread.open.push_back({index, timing});
  // Last: what stands above is not the kernel's time.
  if (!timing) launches_.back().begin = now();
}

void Profile::end() noexcept {
  const double time = now();
  std::lock_guard lock(mutex_);
  Thread& thread = this_thread();
  const Open open = thread.open.back();
  thread.open.pop_back();
  if (open.timing) {
    try {
      open.timing->end.record(current_stream(device_));
      open.timing->has_ended = true;
    } catch (const Error&) {
      // The device failed: the launch's own check says so, and it keeps no time.
    }
  } else {
    add_time(open.launch, time - launches_[open.launch].begin);
  }
}

void Profile::add_time(size_t index, double seconds) const {
  Launch& launch = launches_[index];
  launch.seconds = seconds;
  launch.own_seconds += seconds;
  if (callers_[index] != index) launches_[callers_[index]].own_seconds -= seconds;
}

const std::vector<Profile::Launch>& Profile::launches() const {
  std::lock_guard lock(mutex_);
  if (!pending_.empty()) synchronize(device_);
  for (const Timing& timing : pending_) {
    if (!timing.has_ended) continue;
    launches_[timing.launch].begin = 1e-3 * timing.begin.ms_since(start_event_);
    add_time(timing.launch, 1e-3 * timing.end.ms_since(timing.begin));
  }
  pending_.clear();
  return launches_;
}

std::vector<Profile::Row> Profile::rows(bool by_problem) const {
  std::map<std::string, Row> sums;
  for (const Launch& launch : launches()) {
    const std::string name =
        by_problem ? launch.variant + " " + launch.problem : std::string(launch.variant);
    Row& row = sums[name];
    row.name = name;
    ++row.calls;
    row.seconds += launch.own_seconds;
  }
  std::vector<Row> rows;
  for (auto& [name, row] : sums) rows.push_back(std::move(row));
  std::ranges::stable_sort(rows, [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
  return rows;
}

double Profile::total_seconds() const {
  double total = 0;
  for (const Launch& launch : launches()) total += launch.own_seconds;
  return total;
}

}  // namespace weft::kernels
