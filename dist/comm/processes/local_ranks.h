// Ranks as processes of this host, without MPI: they find each other through a store in a scratch
// directory and talk over TCP (join.h).
#pragma once

#include <string>
#include <vector>

namespace weft::dist {

/// Started ranks: a process group.
class LocalRanks {
 public:
  /// Starts the command so many times, with torchrun's variables. Throws Error when it cannot.
  LocalRanks(int ranks, const std::vector<std::string>& command);
  ~LocalRanks();
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;

  /// To be signalled as a whole: kill(-group(), SIGTERM).
  int group() const { return group_; }
  /// Waits until all have ended. When one has failed the others get SIGTERM, and SIGKILL three
  /// seconds later. The exit code is that of the first that failed: 128 + the signal that ended it,
  /// 127 where the program could not be started.
  int wait();

 private:
  std::string directory_;  // of the store
  int group_ = 0;
  int running_ = 0;
};

}  // namespace weft::dist
