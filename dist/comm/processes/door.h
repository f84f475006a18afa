// How a connection between ranks begins: with a greeting that strangers do not know.
//
//   8 bytes "weft-tcp" | u32 version | i32 who | 64 bytes secret     answered by one byte, Answer
//
// The secret is WEFT_SECRET, at most 64 bytes, which the launcher gives to all ranks of a run. It
// keeps out strangers and the ranks of other runs. Where there is none, the beginning of torchrun's
// TORCHELASTIC_RUN_ID or of SLURM_JOB_ID keeps out other runs alone. It travels as it is, and so
// does what follows: whoever can read the network can read and join the run.
#pragma once

#include <poll.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "dist/comm/processes/socket.h"

namespace weft::dist {

/// One who was let in, and what it said that it is.
struct Guest {
  Socket socket;
  int32_t who = 0;
};

/// Listens, and lets in those who greet properly. Never waits: who says nothing for five seconds,
/// or anything else, is dropped, and named on standard error.
class Door {
 public:
  explicit Door(Socket listener) : listener_(std::move(listener)) {}

  int port() const { return listener_.port(); }
  /// Adds what may bring the next guest.
  void add_to(std::vector<pollfd>& entries) const;
  /// Those who have greeted since the last call.
  std::vector<Guest> admit();
  /// Waits for the next one. Throws Error at the deadline.
  Guest wait(Socket::Clock::time_point deadline);

 private:
  struct Pending {
    Socket socket;
    Socket::Clock::time_point since;
    std::string greeting;
  };
  /// Whether to go on waiting for it; moves it to `guests` when it is let in.
  bool hear(Pending& pending, std::vector<Guest>& guests);
  void drop(const Pending& pending, const std::string& reason);

  Socket listener_;
  std::vector<Pending> pending_;
  std::vector<Guest> early_;                    // let in, not yet waited for
  std::set<std::string> dropped_;               // addresses that were named
  Socket::Clock::time_point rests_until_ = {};  // when no descriptor was left
};

/// Greets at the other side's door. Throws Error that says why it was not let in.
void greet(const Socket& socket, int32_t who, Socket::Clock::time_point deadline);
/// Connects and greets. Tries again for a quarter of a minute, until the deadline at most, where
/// the connection breaks before an answer comes, as it does behind strangers who fill the queue.
Socket enter(const std::string& host, int port, int32_t who, Socket::Clock::time_point deadline);

}  // namespace weft::dist
