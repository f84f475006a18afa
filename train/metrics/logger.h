// Where the figures of a Fabric or a Trainer go. Rank 0 alone calls.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "io/files.h"
#include "io/progress.h"
#include "io/tensorboard.h"
#include "train/metrics/metrics_log.h"

namespace weft::train {

class Logger {
 public:
  virtual ~Logger() = default;
  /// Before anything is trained, and before the sanity check; `step` steps were taken already.
  /// Throws Error where nothing can be written.
  virtual void begin(int64_t /*step*/) {}
  /// Of a Trainer, before begin(): the fit goes on after `step` steps. What was logged of later
  /// ones is logged again.
  virtual void resume(int64_t /*step*/) {}
  /// After `step` steps.
  virtual void log_metrics(int64_t step, const NamedValues& values) = 0;
  /// Of a Trainer: after epoch `epoch`, counted from 0, with the latest value of each name.
  virtual void end_epoch(int64_t /*epoch*/, int64_t /*step*/, const NamedValues& /*metrics*/) {}
  /// After the last call, also when an exception has ended it.
  virtual void finish() {}
};

/// metrics.jsonl and metrics.csv in a directory (train/metrics/metrics_log.h).
class MetricsLogger : public Logger {
 public:
  explicit MetricsLogger(io::Path directory) : directory_(std::move(directory)) {}
  void begin(int64_t step) override;
  /// Cuts the files back to there (train/metrics/metrics_file.h).
  void resume(int64_t step) override;
  void log_metrics(int64_t step, const NamedValues& values) override;

 private:
  const io::Path directory_;
  std::optional<MetricsLog> log_;
};

/// Curves for TensorBoard in a directory (io/tensorboard.h).
class TensorBoardLogger : public Logger {
 public:
  explicit TensorBoardLogger(io::Path directory) : directory_(std::move(directory)) {}
  /// Readers drop what earlier files say of `step` and later steps; of a fit that goes on, of those
  /// after `step`.
  void begin(int64_t step) override;
  void resume(int64_t step) override { resumed_at_ = step; }
  void log_metrics(int64_t step, const NamedValues& values) override;
  void finish() override;

 private:
  const io::Path directory_;
  std::optional<int64_t> resumed_at_;
  std::optional<io::TensorBoardWriter> curves_;
};

/// A table of epochs for who watches: a column for each name but for "_step" values. It has a new
/// heading where an epoch has other names than the one before, as after the first validation.
class ConsoleLogger : public Logger {
 public:
  explicit ConsoleLogger(std::FILE* out = stdout) : out_(out) {}
  void begin(int64_t step) override;
  void log_metrics(int64_t, const NamedValues&) override {}
  void end_epoch(int64_t epoch, int64_t step, const NamedValues& metrics) override;

 private:
  std::FILE* const out_;
  std::chrono::steady_clock::time_point since_;
  std::vector<std::string> names_;
  std::optional<io::Table> table_;
};

}  // namespace weft::train
