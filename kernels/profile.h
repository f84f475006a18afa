// Where the time goes: kernels timed at the launch choke point, on a CUDA device between two events
// in its stream, so that the device is not waited for.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/stream.h"
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
    bool on_device = false;  // times are those of the CUDA device
  };

  struct Row {
    std::string name;  // "gemm_cpu_onednn", or with the problem behind it
    int64_t calls = 0;
    double seconds = 0;  // of its own
  };

  /// Of work on a device. Waits for it.
  explicit Profile(Device device = {});
  ~Profile() override;
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  void begin(std::string_view op, std::string_view variant, Device device,
             const std::string& problem) override;
  void end() noexcept override;

  /// In order of their beginning. Waits for the device; not while kernels are launched.
  const std::vector<Launch>& launches() const;
  size_t size() const { return launches_.size(); }
  /// Added up by variant, or by variant and problem; most time first.
  std::vector<Row> rows(bool by_problem = false) const;
  double total_seconds() const;
  /// Seconds since the profile began.
  double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  /// Events around a launch on the device.
  struct Timing {
    explicit Timing(Device device) : begin(device), end(device) {}
    size_t launch = 0;
    Event begin, end;
    bool has_ended = false;
  };
  struct Open {  // a launch that has not ended
    size_t launch;
    Timing* timing;  // null on the CPU
  };
  struct Thread {
    int number = 0;
    std::vector<Open> open;  // outermost first
  };
  Thread& this_thread();
  /// Adds a launch's time to it, and takes it from its caller's own.
  void add_time(size_t launch, double seconds) const;

  const Device device_;
  Event start_event_{device_};
  Clock::time_point start_;
  mutable std::mutex mutex_;
  std::map<std::thread::id, Thread> threads_;
  mutable std::vector<Launch> launches_;  // times of pending ones are added when asked for
  mutable std::deque<Timing> pending_;
  std::vector<size_t> callers_;  // of each launch; itself where there is none
};

}  // namespace weft::kernels
