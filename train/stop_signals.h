// Ctrl-C as a request: the run finishes the step at hand, saves and says how to go on.
#pragma once

#include <signal.h>

namespace weft::train {

/// While it lives, the first SIGINT, SIGTERM, or SIGUSR1 (what a launcher sends its ranks on
/// Ctrl-C) is a request to stop, and a second one ends the program as usual. One at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Whether one has come since the last construction.
  static bool requested();

 private:
  struct sigaction previous_[3];
};

}  // namespace weft::train
