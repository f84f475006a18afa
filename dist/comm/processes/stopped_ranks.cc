#include "dist/comm/processes/stopped_ranks.h"

#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "dist/comm/host_communicator.h"

namespace weft::dist {
namespace {

std::string text_of(pid_t process, const std::string& file) {
  std::ifstream stream(fmt::format("/proc/{}/{}", process, file));
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// proc(5): the state stands behind the name, which is in parentheses and may hold some.
bool is_stopped(pid_t process) {
  const std::string stat = text_of(process, "stat");
  const size_t name_end = stat.rfind(')');
  return name_end != stat.npos && stat.substr(name_end).starts_with(") T");
}

/// What Open MPI, MPICH or we have told it; -1: nobody has.
int rank_of(pid_t process) {
  const std::string environment = '\0' + text_of(process, "environ");
  for (const std::string_view name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK"}) {
    const size_t place = environment.find(fmt::format("{}{}=", '\0', name));
    if (place != environment.npos) return std::atoi(&environment[place + name.size() + 2]);
  }
  return -1;
}

std::vector<pid_t> children_of(pid_t process) {
  std::vector<pid_t> children;
  std::error_code error;
  const std::filesystem::directory_iterator threads(fmt::format("/proc/{}/task", process), error);
  if (error) return children;
  for (const auto& thread : threads) {
    std::ifstream file(thread.path() / "children");
    children.insert(children.end(), std::istream_iterator<pid_t>(file), {});
  }
  return children;
}

double seconds(int looks) {
  return looks * std::chrono::duration<double>(StoppedRanks::kInterval).count();
}

}  // namespace

StoppedRanks::StoppedRanks(int ranks)
    : timeout_seconds_(HostOptions::from_environment().timeout_seconds),
      most_(static_cast<size_t>(ranks)) {}

void StoppedRanks::find(pid_t process, std::vector<pid_t>& found) {
  for (const pid_t child : children_of(process)) {
    if (!ranks_.contains(child)) {
      const int number = rank_of(child);
      if (number < 0) {
        find(child, found);
        continue;
      }
      ranks_[child].number = number;
    }
    found.push_back(child);
  }
}

void StoppedRanks::look(pid_t above) {
  std::vector<pid_t> running;
  find(above, running);
  most_ = std::max(most_, running.size());
  int least = INT_MAX;
  for (const pid_t process : running) {
    Rank& rank = ranks_[process];
    rank.looks = is_stopped(process) ? rank.looks + 1 : 0;
    if (rank.looks > 0) rank.last = Clock::now();
    rank.longest = std::max(rank.longest, rank.looks);
    least = std::min(least, rank.looks);
  }
  // Looks, not a clock: this process may have been stopped, too.
  if (running.empty() || running.size() == most_ || seconds(least) < timeout_seconds_) return;
  for (const pid_t process : running) {
    fmt::print(stderr,
               "weft: error: rank {} (process {}) was stopped when others had ended; it is killed "
               "after {} s (WEFT_DIST_TIMEOUT)\n",
               ranks_[process].number, process, timeout_seconds_);
    ::kill(process, SIGKILL);
  }
}

void StoppedRanks::tell() const {
  constexpr std::chrono::seconds kLately{10};  // a launcher takes some to end the others
  for (const auto& [process, rank] : ranks_) {
    if (seconds(rank.longest) < 1 || Clock::now() - rank.last > kLately) continue;
    fmt::print(stderr, "weft: rank {} (process {}) was stopped for {:.0f} s\n", rank.number,
               process, seconds(rank.longest));
  }
}

}  // namespace weft::dist
