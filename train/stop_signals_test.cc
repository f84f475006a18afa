#include "train/stop_signals.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "autograd/ops.h"
#include "core/signal_stack.h"

using namespace weft;
using train::StopSignals;

namespace {

stack_t signal_stack() {
  stack_t stack = {};
  sigaltstack(nullptr, &stack);
  return stack;
}

std::atomic<int> signals = 0, elsewhere = 0;
stack_t expected = {};

void on_signal(int) {
  const char here = 0;
  const char* const begin = static_cast<const char*>(expected.ss_sp);
  elsewhere = elsewhere + (&here < begin || &here >= begin + expected.ss_size);
  signals = signals + 1;
}

}  // namespace

TEST_CASE("a signal is a request to stop, and its handler has a stack of its own") {
  const StopSignals watching;
  CHECK(StopSignals::are_watched());
  CHECK_FALSE(StopSignals::requested());
  CHECK((signal_stack().ss_flags & SS_DISABLE) == 0);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGPIPE}) {
    INFO(signal);
    struct sigaction action = {};
    REQUIRE(sigaction(signal, nullptr, &action) == 0);
    CHECK((action.sa_handler == SIG_IGN || (action.sa_flags & SA_ONSTACK) != 0));
  }
  raise(SIGTERM);
  CHECK(StopSignals::requested());
}

TEST_CASE("a broken pipe is a request to stop, unless the program ignores it") {
  struct sigaction ignored = {}, before = {}, after = {};
  ignored.sa_handler = SIG_IGN;
  REQUIRE(sigaction(SIGPIPE, nullptr, &before) == 0);
  for (const int signal : {SIGPIPE, SIGHUP}) {
    INFO(signal);
    struct sigaction usual = {};
    REQUIRE(sigaction(signal, &ignored, &usual) == 0);
    {
      const StopSignals watching;
      raise(signal);
      CHECK_FALSE(StopSignals::requested());
    }
    REQUIRE(sigaction(signal, &usual, &after) == 0);
    CHECK(after.sa_handler == SIG_IGN);
  }
  struct sigaction own = {};
  own.sa_handler = [](int) {};
  REQUIRE(sigaction(SIGPIPE, &own, nullptr) == 0);
  {
    const StopSignals watching;
    raise(SIGPIPE);
    CHECK(StopSignals::requested());
  }
  REQUIRE(sigaction(SIGPIPE, &before, &after) == 0);
  CHECK(after.sa_handler == own.sa_handler);
}

TEST_CASE("signals that come while products are computed leave the heap as it is") {
  ensure_signal_stack();
  expected = signal_stack();
  struct sigaction action = {}, before = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  REQUIRE(sigaction(SIGUSR2, &action, &before) == 0);
  std::atomic<bool> is_over = false;
  std::thread sender([&, main = pthread_self()] {
    while (!is_over) {
      pthread_kill(main, SIGUSR2);
      usleep(50);
    }
  });
  const NoGrad guard;
  // K beyond what oneDNN's kernels keep on the stack.
  const Tensor a = ops::randn({48, 4096}), b = ops::randn({4096, 48});
  const std::vector<double> product = ops::matmul(a, b).to_vector();
  bool is_same = true;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (size_t i = 0; signals < 2000 && std::chrono::steady_clock::now() < end; ++i) {
    std::vector<std::unique_ptr<char[]>> blocks;  // by which malloc sees to its lists
    for (size_t size = 16; size < 1 << 20; size *= 3) {
      blocks.push_back(std::make_unique<char[]>(size + 8 * i % 512));
    }
    is_same = is_same && ops::matmul(a, b).to_vector() == product;
  }
  is_over = true;
  sender.join();
  sigaction(SIGUSR2, &before, nullptr);
  CHECK(is_same);
  CHECK(signals >= 100);
  CHECK(elsewhere == 0);
}
