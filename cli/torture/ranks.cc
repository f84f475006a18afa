// Trainings on several ranks, one of which is killed or stopped.
#include <fmt/core.h>
#include <signal.h>

#include <map>
#include <memory>

#include "cli/torture/small_run.h"

namespace weft::cli {
namespace {

constexpr int kRanks = 4;
/// Seconds that a rank waits for another (WEFT_DIST_TIMEOUT), and that an end may take.
constexpr int kTimeout = 5;
constexpr double kDeadline = 60;

/// A process of the launched run that is this rank, or -1.
pid_t process_of_rank(const Child& child, int rank) {
  const std::vector<pid_t> pids = child.family(fmt::format("OMPI_COMM_WORLD_RANK={}", rank));
  return pids.empty() ? -1 : pids.front();
}

std::string hurt(SmallRun& small, int signal, int rank, double moment) {
  const io::Path output = small.fresh_output();
  Child child = small.run(small.start(output), {{"WEFT_DIST_TIMEOUT", std::to_string(kTimeout)}});
  child.has_ended(moment);
  const pid_t victim = process_of_rank(child, rank);
  if (victim > 0) ::kill(victim, signal);
  const bool is_late = !child.has_ended(kDeadline);
  if (is_late) return "hung: it did not end in time";
  const ChildEnd end = child.wait(0);
  // The stopped one is killed by who waits for it; mpirun may take a moment for the last.
  for (int i = 0; i < 100 && !child.family().empty(); ++i) child.pause();
  if (!child.family().empty()) return "processes are left behind";
  const bool is_done = end.code == 0;  // it came too early or too late to hurt
  if (!is_done && victim > 0 && end.err.find(fmt::format("rank {}", rank)) == end.err.npos) {
    return fmt::format("nothing names rank {}: {}", rank, describe(end));
  }
  return small.finish(output);
}

}  // namespace

void hurt_ranks(Rack& rack, Tally& tally) {
  const std::vector<const char*> strategies = {"ddp", "fsdp", "tp", "pipeline"};
  std::map<std::string, std::unique_ptr<SmallRun>> runs;
  for (int64_t i = 0; rack.goes_on(i, 2); ++i) {
    const std::string strategy = strategies[rack.random.below(strategies.size())];
    auto& small = runs[strategy];
    if (!small) {
      small = std::make_unique<SmallRun>(
          rack,
          std::vector<std::string>{"--devices", std::to_string(kRanks), "--strategy", strategy});
    }
    const int signal = i % 2 == 0 ? SIGKILL : SIGSTOP;
    const int rank = static_cast<int>(rack.random.below(kRanks));
    const double moment = rack.random.uniform() * small->seconds();
    const std::string loss = hurt(*small, signal, rank, moment);
    tally.count(loss.empty(), fmt::format("{}: rank {} got signal {} after {:.3f} s: {}", strategy,
                                          rank, signal, moment, loss));
  }
}

}  // namespace weft::cli
