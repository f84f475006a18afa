// Where the time goes: kernels timed at the launch choke point.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/op.h"

namespace weft::kernels {

/// Times every kernel launched while it lives, from whatever thread. Launches are told apart by the
/// thread that made them; a kernel's own threads work within its time.
class Profile : public LaunchHook {
 public:
  using Clock = std::chrono::steady_clock;

  /// One launch. Times are seconds since the profile began.
  struct Launch {
    std::string op, variant, problem;
    double begin = 0;
    double seconds = 0;
    double own_seconds = 0;  // without the kernels that it called
    int thread = 0;          // 0: the first thread that launched a kernel, 1: the second, ...
    int depth = 0;           // 1 and more: called from another kernel
  };

  struct Row {
    std::string name;  // "gemm_cpu_onednn", or with the problem behind it
    int64_t calls = 0;
    double seconds = 0;  // of its own
  };

  Profile();
  ~Profile() override;
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  void begin(std::string_view op, std::string_view variant, const std::string& problem) override;
  void end() override;

  /// In order of their beginning. Not while kernels run.
  const std::vector<Launch>& launches() const { return launches_; }
  /// Added up by variant, or by variant and problem; most time first.
  std::vector<Row> rows(bool by_problem = false) const;
  double total_seconds() const;
  /// Seconds since the profile began.
  double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  struct Thread {
    int number = 0;
    std::vector<size_t> open;  // its launches that have not ended, outermost first
  };
  Thread& this_thread();

  const Clock::time_point start_ = Clock::now();
  std::mutex mutex_;
  std::map<std::thread::id, Thread> threads_;
  std::vector<Launch> launches_;
};

}  // namespace weft::kernels
