#include "train/stop_signals.h"

#include "core/signal_stack.h"

namespace weft::train {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGPIPE};
volatile sig_atomic_t stop_requested = 0;
bool is_watching = false;

}  // namespace

StopSignals::StopSignals() {
  ensure_signal_stack();
  stop_requested = 0;
  is_watching = true;
  struct sigaction action = {};
  action.sa_handler = [](int) { stop_requested = 1; };
  for (size_t i = 0; i < previous_.size(); ++i) {
    action.sa_flags = SA_ONSTACK | SA_RESTART;
    if (kSignals[i] != SIGPIPE) action.sa_flags |= static_cast<int>(SA_RESETHAND);
    sigaction(kSignals[i], &action, &previous_[i]);
    const bool is_ignored = kSignals[i] == SIGHUP && previous_[i].sa_handler == SIG_IGN;
    if (is_ignored) sigaction(SIGHUP, &previous_[i], nullptr);
  }
}

StopSignals::~StopSignals() {
  is_watching = false;
  for (size_t i = 0; i < previous_.size(); ++i) sigaction(kSignals[i], &previous_[i], nullptr);
}

bool StopSignals::requested() { return stop_requested != 0; }

bool StopSignals::are_watched() { return is_watching; }

}  // namespace weft::train
