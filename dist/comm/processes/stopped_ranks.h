// Ranks that are stopped (SIGSTOP, or a debugger's hand), as their launcher sees them. The others
// miss them at a deadline, but in MPI's own calls without knowing whom; and where the others have
// ended already nobody does, and the launcher would wait for ever.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <vector>

namespace weft::dist {

class StoppedRanks {
 public:
  /// Of so many ranks on this host, 0 where nobody knows: then as many as are seen at a time.
  /// Throws Error for a bad WEFT_DIST_TIMEOUT.
  explicit StoppedRanks(int ranks);

  static constexpr std::chrono::milliseconds kInterval{20};
  /// To be called every kInterval: looks at the ranks that the process `above` has started. Where
  /// some have ended, and all that are left have been stopped for WEFT_DIST_TIMEOUT seconds, says
  /// so on standard error and kills them.
  void look(pid_t above);
  /// After a failure: says which ranks were stopped for a second or more, lately.
  void tell() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    int number = 0;
    int looks = 0;  // the last so many, at each of which it was stopped
    Clock::time_point last = {};
    int longest = 0;  // looks
  };

  /// Adds the ranks at and below a process.
  void find(pid_t process, std::vector<pid_t>& found);

  const double timeout_seconds_;
  std::map<pid_t, Rank> ranks_;
  size_t most_;  // that were there at a time
};

}  // namespace weft::dist
