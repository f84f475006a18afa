// What a rank's collectives did last, of all its groups, kept for the moment something hangs:
// written on a timeout, when WEFT_DIST_DUMP names a directory, as <directory>/rank-<r>.json.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace weft::dist {

/// Safe to use from several threads.
class FlightRecorder {
 public:
  using Clock = std::chrono::steady_clock;
  enum class State : uint8_t { kQueued, kRunning, kDone, kFailed };

  explicit FlightRecorder(int rank, size_t capacity = 1024) : rank_(rank), capacity_(capacity) {}

  /// Notes a collective that was asked for; the ticket names it below.
  uint64_t queued(std::string group, uint64_t sequence, std::string collective, int64_t bytes);
  void started(uint64_t ticket);
  void finished(uint64_t ticket, bool succeeded);

  struct Entry {
    uint64_t ticket = 0;
    std::string group;
    uint64_t sequence = 0;
    std::string collective;  // "all_reduce #12 (sum f32 [1024])"
    int64_t bytes = 0;       // of this rank's tensors
    State state = State::kQueued;
    Clock::time_point queued, started, finished;
  };
  /// Oldest first.
  std::vector<Entry> entries() const;
  nlohmann::json to_json() const;
  /// Writes to_json() into the directory of WEFT_DIST_DUMP; nothing without it. Never throws.
  void dump() const noexcept;

 private:
  Entry* find(uint64_t ticket);

  const int rank_;
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::vector<Entry> ring_;
  uint64_t next_ticket_ = 0;
};

}  // namespace weft::dist
