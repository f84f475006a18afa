#include "train/stop_signals.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "core/signal_stack.h"

namespace weft::train {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGPIPE};
volatile sig_atomic_t stop_requested = 0;
bool is_watching = false;

constexpr int kOutputs[] = {STDOUT_FILENO, STDERR_FILENO};
volatile sig_atomic_t was_unblocked[] = {0, 0};

/// A write that waits begins anew after a signal (SA_RESTART), and fails where it must not wait any
/// more. In a handler: poll() and fcntl() are async-signal-safe (POSIX.1-2017, 2.4.3).
void unblock_outputs() {
  const int error = errno;
  for (size_t i = 0; i < std::size(kOutputs); ++i) {
    pollfd room = {.fd = kOutputs[i], .events = POLLOUT, .revents = 0};
    if (::poll(&room, 1, 0) != 0) continue;
    const int flags = ::fcntl(kOutputs[i], F_GETFL);
    if (flags < 0 || (flags & O_NONBLOCK) != 0) continue;
    if (::fcntl(kOutputs[i], F_SETFL, flags | O_NONBLOCK) == 0) was_unblocked[i] = 1;
  }
  errno = error;
}

void block_outputs() {
  for (size_t i = 0; i < std::size(kOutputs); ++i) {
    if (was_unblocked[i] == 0) continue;
    was_unblocked[i] = 0;
    const int flags = ::fcntl(kOutputs[i], F_GETFL);
    if (flags >= 0) ::fcntl(kOutputs[i], F_SETFL, flags & ~O_NONBLOCK);
  }
}

}  // namespace

StopSignals::StopSignals() {
  ensure_signal_stack();
  stop_requested = 0;
  is_watching = true;
  struct sigaction action = {};
  action.sa_handler = [](int) {
    stop_requested = 1;
    unblock_outputs();
  };
  for (size_t i = 0; i < previous_.size(); ++i) {
    action.sa_flags = SA_ONSTACK | SA_RESTART;
    if (kSignals[i] != SIGPIPE) action.sa_flags |= static_cast<int>(SA_RESETHAND);
    sigaction(kSignals[i], &action, &previous_[i]);
    // A program that ignores SIGPIPE learns of a broken pipe or socket from its writes.
    const bool may_stay = kSignals[i] == SIGHUP || kSignals[i] == SIGPIPE;
    const bool is_ignored = may_stay && previous_[i].sa_handler == SIG_IGN;
    if (is_ignored) sigaction(kSignals[i], &previous_[i], nullptr);
  }
}

StopSignals::~StopSignals() {
  is_watching = false;
  for (size_t i = 0; i < previous_.size(); ++i) sigaction(kSignals[i], &previous_[i], nullptr);
  block_outputs();
}

bool StopSignals::requested() { return stop_requested != 0; }

void StopSignals::request() { stop_requested = 1; }

bool StopSignals::are_watched() { return is_watching; }

}  // namespace weft::train
