// The figures of a run in its directory: config.yaml, metrics.jsonl and metrics.csv, and curves for
// TensorBoard. `seconds` counts from the run's beginning, without the time between a stop and going
// on. Of each layer that was looked at its figures (train/layer_watch.h), and a histogram of its
// gradients.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/files.h"
#include "io/tensorboard.h"
#include "train/config.h"
#include "train/layer_watch.h"
#include "train/metrics/metrics_log.h"

namespace weft::train {

class RunFigures {
 public:
  using Figures = std::vector<std::pair<std::string, double>>;

  /// Of a run that goes on after so many steps and epochs the metrics are cut back to there.
  RunFigures(const io::Path& output, const Config& config, int64_t step, int64_t epoch);

  /// Curves and metrics are with the system when it returns: a run that is killed loses neither.
  void record(int64_t step, Figures figures, const std::vector<LayerFigures>& layers = {});
  void image(const std::string& name, int64_t step, int height, int width, const std::string& png);

 private:
  io::TensorBoardWriter curves_;
  std::optional<MetricsLog> metrics_;
  std::chrono::steady_clock::time_point start_;
  double seconds_before_ = 0;  // of the run, before this session
};

}  // namespace weft::train
