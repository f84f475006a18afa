#include "kernels/profile.h"

#include <algorithm>

namespace weft::kernels {

Profile::Profile(bool by_problem) : by_problem_(by_problem) { set_launch_hook(this); }
Profile::~Profile() { set_launch_hook(nullptr); }

void Profile::begin(std::string_view, std::string_view variant, const std::string& problem) {
  std::string name(variant);
  if (by_problem_) name += " " + problem;
  open_.push_back({std::move(name), Clock::now()});
}

void Profile::end() {
  const Open entry = std::move(open_.back());
  open_.pop_back();
  const double seconds = std::chrono::duration<double>(Clock::now() - entry.start).count();
  Row& row = rows_[entry.name];
  row.name = entry.name;
  ++row.calls;
  row.seconds += seconds - entry.inner;
  if (!open_.empty()) open_.back().inner += seconds;
}

std::vector<Profile::Row> Profile::rows() const {
  std::vector<Row> rows;
  for (const auto& [name, row] : rows_) rows.push_back(row);
  std::ranges::sort(rows, [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
  return rows;
}

double Profile::total_seconds() const {
  double total = 0;
  for (const auto& [name, row] : rows_) total += row.seconds;
  return total;
}

}  // namespace weft::kernels
