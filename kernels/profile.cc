#include "kernels/profile.h"

#include <algorithm>

namespace weft::kernels {

Profile::Profile() { set_launch_hook(this); }
Profile::~Profile() { set_launch_hook(nullptr); }

Profile::Thread& Profile::this_thread() {
  const auto [entry, is_new] = threads_.try_emplace(std::this_thread::get_id());
  if (is_new) entry->second.number = static_cast<int>(threads_.size()) - 1;
  return entry->second;
}

void Profile::begin(std::string_view op, std::string_view variant, const std::string& problem) {
  std::lock_guard lock(mutex_);
  Thread& thread = this_thread();
  Launch launch{.op = std::string(op), .variant = std::string(variant), .problem = problem};
  launch.thread = thread.number;
  launch.depth = static_cast<int>(thread.open.size());
  thread.open.push_back(launches_.size());
  launches_.push_back(std::move(launch));
  launches_.back().begin = now();  // last: what stands above is not the kernel's time
}

void Profile::end() {
  const double time = now();
  std::lock_guard lock(mutex_);
  Thread& thread = this_thread();
  Launch& launch = launches_[thread.open.back()];
  thread.open.pop_back();
  launch.seconds = time - launch.begin;
  launch.own_seconds += launch.seconds;
  if (!thread.open.empty()) launches_[thread.open.back()].own_seconds -= launch.seconds;
}

std::vector<Profile::Row> Profile::rows(bool by_problem) const {
  std::map<std::string, Row> sums;
  for (const Launch& launch : launches_) {
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
  for (const Launch& launch : launches_) total += launch.own_seconds;
  return total;
}

}  // namespace weft::kernels
