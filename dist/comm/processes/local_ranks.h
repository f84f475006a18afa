// Ranks as processes of this host, without MPI: they find each other through a store and talk over
// TCP (join.h).
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "dist/comm/processes/rank_environment.h"
#include "dist/comm/processes/stopped_ranks.h"

namespace weft::dist {

/// fork(), for a program that starts or is ranks. A signal to stop that reaches the child before it
/// becomes that ends it: it does not have the handlers of this process, nor its place among ranks.
pid_t fork_child();

/// As many ranks on each of `hosts` hosts, of which this is number `host`.
struct RanksHere {
  int ranks = 1;  // of this host
  int hosts = 1, host = 0;
  MeetingPoint meeting;
  int restarts = 0;     // that there were before
  int first_ranks = 0;  // of the first start, on all hosts
};

/// Started ranks: a process group.
class LocalRanks {
 public:
  /// Starts the command so many times, with torchrun's variables. On one host the store is a
  /// scratch directory, and the ranks share a secret; on several rank 0 serves it at the meeting
  /// point, and whoever starts them gives the secret. Throws Error when it cannot.
  LocalRanks(const RanksHere& here, const std::vector<std::string>& command);
  ~LocalRanks();
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;

  /// To be signalled as a whole: kill(-group(), SIGTERM).
  int group() const { return group_; }
  /// Waits until all have ended. When one has failed the others get SIGTERM, and SIGKILL three
  /// seconds later; those that are stopped when others have ended, see StoppedRanks. The exit code
  /// is that of the first that failed: 128 + the signal that ended it, 127 where the program could
  /// not be started.
  int wait();
  /// Of wait(): ranks that a signal ended which nobody here has sent.
  int lost() const { return lost_; }

 private:
  std::string directory_;  // of the store
  int group_ = 0;
  int running_ = 0, lost_ = 0;
  StoppedRanks stopped_;
};

}  // namespace weft::dist
