// Where the time goes: kernels timed at the launch choke point.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "kernels/op.h"

namespace weft::kernels {

/// Adds up the time of every kernel launched from this thread while it lives. Kernels that call
/// others keep only their own time.
class Profile : public LaunchHook {
 public:
  struct Row {
    std::string name;  // "gemm_cpu_onednn", or with the problem behind it
    int64_t calls = 0;
    double seconds = 0;
  };

  /// by_problem: a row for each shape instead of one for each variant.
  explicit Profile(bool by_problem = false);
  ~Profile() override;

  void begin(std::string_view op, std::string_view variant, const std::string& problem) override;
  void end() override;

  /// Most time first.
  std::vector<Row> rows() const;
  double total_seconds() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Open {
    std::string name;
    Clock::time_point start;
    double inner = 0;  // seconds in kernels called from this one
  };

  bool by_problem_;
  std::vector<Open> open_;
  std::map<std::string, Row> rows_;
};

}  // namespace weft::kernels
