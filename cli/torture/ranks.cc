// Trainings on several ranks, one of which is killed or stopped, or whose port a stranger finds.
#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <memory>

#include "cli/torture/small_run.h"
#include "core/error.h"
#include "dist/comm/processes/socket.h"

namespace weft::cli {
namespace {

constexpr int kRanks = 4;
/// Seconds that a rank waits for another (WEFT_DIST_TIMEOUT), and that an end may take.
constexpr int kTimeout = 5;
constexpr double kDeadline = 60;

/// What happens to a run.
enum class Fault { kKill, kStop, kStranger };
constexpr const char* kFaults[] = {"was killed", "was stopped", "met a stranger"};

/// A run on all ranks: mpirun's, or processes started one by one that meet at a port of this host.
class World {
 public:
  World(const SmallRun& small, const io::Path& output, const io::Path& scratch, bool over_tcp) {
    std::map<std::string, std::string> environment = {
        {"WEFT_DIST_TIMEOUT", std::to_string(kTimeout)}};
    if (!over_tcp) {
      children_.emplace_back(scratch / "child", small.start(output), environment);
      return;
    }
    port_ = dist::Socket::listen(0).port();
    environment.insert({{"WORLD_SIZE", std::to_string(kRanks)},
                        {"MASTER_ADDR", "127.0.0.1"},
                        {"MASTER_PORT", std::to_string(port_)},
                        {"WEFT_SECRET", fmt::format("of {}", output.string())}});
    for (int rank = 0; rank < kRanks; ++rank) {
      environment["RANK"] = environment["LOCAL_RANK"] = std::to_string(rank);
      children_.emplace_back(scratch / fmt::format("child-{}", rank), small.start(output),
                             environment);
    }
  }

  /// Whether there was a rank to hurt.
  bool hurt(Fault fault, int rank) {
    if (fault == Fault::kStranger) return intrude();
    const pid_t victim = process_of(rank);
    return victim > 0 && ::kill(victim, fault == Fault::kKill ? SIGKILL : SIGSTOP) == 0;
  }

  bool have_ended(double seconds, int but_for = -1) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    for (size_t i = 0; i < children_.size(); ++i) {
      if (children_.size() > 1 && static_cast<int>(i) == but_for) continue;
      const std::chrono::duration<double> left = end - std::chrono::steady_clock::now();
      if (!children_[i].has_ended(std::max(0.0, left.count()))) return false;
    }
    return true;
  }

  /// The worst exit code, and what all said. Nothing is left running.
  ChildEnd end() {
    ChildEnd all{.code = 0};
    for (Child& child : children_) {
      const ChildEnd one = child.wait(0);
      all.code = std::max(all.code, one.code);
      all.err += one.err;
    }
    return all;
  }

  /// Processes of mpirun that outlive it; it may take a moment for the last.
  bool leaves_processes() const {
    for (const Child& child : children_) {
      for (int i = 0; i < 100 && !child.family().empty(); ++i) child.pause();
      if (!child.family().empty()) return true;
    }
    return false;
  }

 private:
  pid_t process_of(int rank) const {
    if (port_ > 0) return children_[rank].pid();
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {  // of Open MPI, of MPICH
      const std::vector<pid_t> pids = children_[0].family(fmt::format("{}={}", name, rank));
      if (!pids.empty()) return pids.front();
    }
    return -1;
  }

  /// Somebody says something else at the port of rank 0.
  bool intrude() const {
    try {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
      const dist::Socket socket = dist::Socket::connect("127.0.0.1", port_, deadline);
      socket.send("GET / HTTP/1.1\r\n\r\n", 18, deadline);
      return true;
    } catch (const Error&) {  // nobody listens yet, or any more
      return false;
    }
  }

  std::deque<Child> children_;  // mpirun, or the ranks
  int port_ = 0;                // of ranks over TCP
};

std::string hurt(SmallRun& small, const io::Path& scratch, bool over_tcp, Fault fault, int rank,
                 double moment) {
  const io::Path output = small.fresh_output();
  {
    World world(small, output, scratch, over_tcp);
    world.have_ended(moment);
    const bool is_hurt = world.hurt(fault, rank);
    // Nobody but us ends a stopped rank that no launcher waits for.
    const bool stays = over_tcp && fault == Fault::kStop;
    if (!world.have_ended(kDeadline, stays ? rank : -1)) return "hung: it did not end in time";
    if (stays) world.hurt(Fault::kKill, rank);
    if (!over_tcp && world.leaves_processes()) return "processes are left behind";
    const ChildEnd end = world.end();
    const bool is_done = end.code == 0;  // it came too early or too late to hurt
    if (fault == Fault::kStranger && !is_done) return "the stranger ended it: " + describe(end);
    const bool is_named = end.err.find(fmt::format("rank {}", rank)) != end.err.npos;
    if (!is_done && is_hurt && !is_named) {
      return fmt::format("nothing names rank {}: {}", rank, describe(end));
    }
  }
  return small.finish(output);
}

}  // namespace

void hurt_ranks(Rack& rack, Tally& tally) {
  const std::vector<const char*> strategies = {"ddp", "fsdp", "tp", "pipeline"};
  std::map<std::string, std::unique_ptr<SmallRun>> runs;
  for (int64_t i = 0; rack.goes_on(i, 5); ++i) {
    const std::string strategy = strategies[rack.random.below(strategies.size())];
    auto& small = runs[strategy];
    if (!small) {
      small = std::make_unique<SmallRun>(
          rack,
          std::vector<std::string>{"--devices", std::to_string(kRanks), "--strategy", strategy});
    }
    // Over TCP each fault, with MPI the first two: it has no port of ours.
    constexpr std::pair<bool, Fault> kTrials[] = {{false, Fault::kKill},
                                                  {true, Fault::kKill},
                                                  {false, Fault::kStop},
                                                  {true, Fault::kStop},
                                                  {true, Fault::kStranger}};
    const auto [over_tcp, fault] = kTrials[i % std::size(kTrials)];
    const int rank = static_cast<int>(rack.random.below(kRanks));
    const double moment = rack.random.uniform() * small->seconds();
    const std::string loss = hurt(*small, rack.scratch, over_tcp, fault, rank, moment);
    tally.count(loss.empty(), fmt::format("{} over {}: rank {} {} after {:.3f} s: {}", strategy,
                                          over_tcp ? "TCP" : "MPI", rank,
                                          kFaults[static_cast<int>(fault)], moment, loss));
  }
}

}  // namespace weft::cli
