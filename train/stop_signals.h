// Ctrl-C as a request: the run finishes the step at hand, saves and says how to go on.
#pragma once

#include <signal.h>

#include <array>

namespace weft::train {

/// While it lives, the first SIGINT, SIGTERM, SIGHUP, or SIGUSR1 (what a launcher sends its ranks
/// on Ctrl-C) is a request to stop, and a second one ends the program as usual. So is a SIGPIPE,
/// which comes when nobody reads standard output any more; it ends nothing. Where SIGHUP (nohup) or
/// SIGPIPE (Python, whose sockets may break without ending a fit) was ignored before it still is.
/// Where standard output or standard error takes nothing as a request comes, as a pipe that nobody
/// reads, neither blocks from then on: a writer that waits gets EAGAIN, and the step ends. One at a
/// time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Whether one has come since the last construction.
  static bool requested();
  /// As if one had come.
  static void request();
  /// Whether there is one.
  static bool are_watched();

 private:
  std::array<struct sigaction, 5> previous_;
};

}  // namespace weft::train
