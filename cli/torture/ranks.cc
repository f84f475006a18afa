// Trainings on several ranks, one of which is killed, stopped, slow or mistaken, whose connections
// break, whose port a stranger finds, or one of which does not bring its part of a checkpoint to
// the disk.
#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <thread>

#include "cli/torture/small_run.h"
#include "core/error.h"
#include "dist/comm/processes/socket.h"

namespace weft::cli {
namespace {

constexpr int kRanks = 4;
/// Seconds that a rank waits for another (WEFT_DIST_TIMEOUT), and that an end may take.
constexpr int kTimeout = 5;
constexpr double kDeadline = 60;
/// Up to which of its collectives a rank errs; a run has about so many, or more.
constexpr int kCollectives = 40;
/// Up to which of its operations on files a rank gets; a run has about so many, rank 0's more.
constexpr int kFileOperations = 24;

/// What happens to a run: from outside, or by the rank's own fault (dist/comm/fault.h).
enum class Harm { kKill, kStop, kSlow, kStranger, kShape, kOrder, kLost, kGarbled };
struct Words {
  const char* says;          // what the rank did or suffered
  const char* own_fault;     // what WEFT_DIST_FAULT calls it
  bool is_survived = false;  // the run must end well
};
constexpr Words kWords[] = {
    {"was killed", nullptr},           {"was stopped", nullptr},
    {"was slow", nullptr, true},       {"met a stranger", nullptr, true},
    {"sent an element less", "shape"}, {"left a collective out", "order"},
    {"lost its connections", "lost"},  {"sent garbage", "garbled"},
};
const Words& words(Harm harm) { return kWords[static_cast<int>(harm)]; }

struct Trial {
  Harm harm;
  bool over_tcp;
};
/// MPI has no port of ours, and no connection that a rank could break.
constexpr Trial kTrials[] = {
    {Harm::kKill, false}, {Harm::kStop, true},     {Harm::kOrder, false},  {Harm::kShape, true},
    {Harm::kLost, true},  {Harm::kStranger, true}, {Harm::kKill, true},    {Harm::kStop, false},
    {Harm::kOrder, true}, {Harm::kShape, false},   {Harm::kGarbled, true}, {Harm::kSlow, true},
    {Harm::kSlow, false},
};

using Environment = std::map<std::string, std::string>;

/// A run on all ranks: mpirun's, or processes started one by one that meet at a port of this host.
class World {
 public:
  /// Over TCP the rank `marked` has something of its `own` that the others lack.
  World(const SmallRun& small, const io::Path& output, const io::Path& scratch, bool over_tcp,
        Environment environment, int marked = -1, const Environment& own = {}) {
    environment["WEFT_DIST_TIMEOUT"] = std::to_string(kTimeout);
    if (over_tcp) {
      start_ranks(small, output, scratch, environment, marked, own);
    } else {
      children_.emplace_back(scratch / "child", small.start(output), environment);
    }
  }

  /// Whether there was a rank to hurt.
  bool hurt(Harm harm, int rank) {
    if (harm == Harm::kStranger) return intrude();
    const pid_t victim = process_of(rank);
    if (victim <= 0 || ::kill(victim, harm == Harm::kKill ? SIGKILL : SIGSTOP) != 0) return false;
    if (harm == Harm::kSlow) {
      std::this_thread::sleep_for(std::chrono::duration<double>(0.3 * kTimeout));
      ::kill(victim, SIGCONT);
    }
    return true;
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
  void start_ranks(const SmallRun& small, const io::Path& output, const io::Path& scratch,
                   const Environment& common, int marked, const Environment& own) {
    port_ = dist::Socket::listen(0).port();
    for (int rank = 0; rank < kRanks; ++rank) {
      Environment environment = common;
      environment.insert({{"WORLD_SIZE", std::to_string(kRanks)},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", std::to_string(port_)},
                          {"WEFT_SECRET", fmt::format("of {}", output.string())},
                          {"RANK", std::to_string(rank)},
                          {"LOCAL_RANK", std::to_string(rank)}});
      if (rank == marked) environment.insert(own.begin(), own.end());
      children_.emplace_back(scratch / fmt::format("child-{}", rank), small.start(output),
                             environment);
    }
  }

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

std::string hurt(SmallRun& small, Rack& rack, Trial trial, int rank, double moment) {
  const io::Path output = small.fresh_output();
  {
    const char* const own_fault = words(trial.harm).own_fault;
    Environment environment;
    if (own_fault) {
      environment["WEFT_DIST_FAULT"] =
          fmt::format("{}:{}:{}", own_fault, rank, rack.random.below(kCollectives));
    }
    World world(small, output, rack.scratch, trial.over_tcp, environment);
    bool is_hurt = own_fault != nullptr;
    if (!own_fault) {
      world.have_ended(moment);
      is_hurt = world.hurt(trial.harm, rank);
    }
    // Nobody but us ends a stopped rank that no launcher waits for.
    const bool stays = trial.over_tcp && trial.harm == Harm::kStop;
    if (!world.have_ended(kDeadline, stays ? rank : -1)) return "hung: it did not end in time";
    if (stays) world.hurt(Harm::kKill, rank);
    if (!trial.over_tcp && world.leaves_processes()) return "processes are left behind";
    const ChildEnd end = world.end();
    const bool is_done = end.code == 0;  // it came too early or too late to hurt
    if (words(trial.harm).is_survived && !is_done) return "that ended it: " + describe(end);
    const bool is_named = end.err.find(fmt::format("rank {}", rank)) != end.err.npos;
    if (!is_done && is_hurt && !is_named) {
      return fmt::format("nothing names rank {}: {}", rank, describe(end));
    }
  }
  return small.finish(output);
}

/// A rank gets no further than some operation on a file of its own.
std::string lose_part(SmallRun& small, Rack& rack, int rank, const std::string& fault) {
  const io::Path output = small.fresh_output();
  {
    World world(small, output, rack.scratch, true, {}, rank, {{"WEFT_FILE_FAULT", fault}});
    if (!world.have_ended(kDeadline)) return "hung: it did not end in time";
    const ChildEnd end = world.end();
    const bool is_done = end.code == 0;  // the rank has fewer operations
    if (!is_done && end.err.find(fmt::format("rank {}", rank)) == end.err.npos) {
      return fmt::format("nothing names rank {}: {}", rank, describe(end));
    }
  }
  return small.finish(output);
}

/// Runs under each strategy that was asked for, made at the first time.
class Runs {
 public:
  explicit Runs(Rack& rack) : rack_(rack) {}

  SmallRun& under(const std::string& strategy, const std::string& checkpoints) {
    auto& small = runs_[strategy];
    if (!small) {
      small = std::make_unique<SmallRun>(
          rack_, std::vector<std::string>{"--devices", std::to_string(kRanks), "--strategy",
                                          strategy, "--state-dict-type", checkpoints});
    }
    return *small;
  }

 private:
  Rack& rack_;
  std::map<std::string, std::unique_ptr<SmallRun>> runs_;
};

}  // namespace

void hurt_ranks(Rack& rack, Tally& tally) {
  struct Kind {
    const char *strategy, *checkpoints;
  };
  constexpr Kind kKinds[] = {
      {"ddp", "full"}, {"fsdp", "sharded"}, {"tp", "sharded"}, {"pipeline", "full"}};
  Runs runs(rack);
  for (int64_t i = 0; rack.goes_on(i, 6); ++i) {
    const auto& [strategy, checkpoints] = kKinds[rack.random.below(std::size(kKinds))];
    SmallRun& small = runs.under(strategy, checkpoints);
    const Trial trial = kTrials[i % std::size(kTrials)];
    const int rank = static_cast<int>(rack.random.below(kRanks));
    const double moment = rack.random.uniform() * small.seconds();
    const std::string loss = hurt(small, rack, trial, rank, moment);
    tally.count(loss.empty(), fmt::format("{} over {}: rank {} {} after {:.3f} s: {}", strategy,
                                          trial.over_tcp ? "TCP" : "MPI", rank,
                                          words(trial.harm).says, moment, loss));
  }
}

void lose_parts(Rack& rack, Tally& tally) {
  constexpr const char* kStrategies[] = {"fsdp", "tp", "pipeline", "ddp"};
  constexpr const char* kFaults[] = {"kill", "EIO", "ENOSPC"};
  Runs runs(rack);
  for (int64_t i = 0; rack.goes_on(i, 4); ++i) {
    const char* const strategy = kStrategies[i % std::size(kStrategies)];
    const int rank = static_cast<int>(rack.random.below(kRanks));
    const std::string fault = fmt::format("{}:{}", kFaults[i % std::size(kFaults)],
                                          1 + rack.random.below(kFileOperations));
    const std::string loss = lose_part(runs.under(strategy, "sharded"), rack, rank, fault);
    tally.count(loss.empty(), fmt::format("{}: rank {} met {}: {}", strategy, rank, fault, loss));
  }
}

}  // namespace weft::cli
