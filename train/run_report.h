// What a run says: a heading and a table for a person, or JSON events for a program, and curves for
// TensorBoard. Rank 0 speaks for all; the reports of the others are silent.
#pragma once

#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "data/sets/open.h"
#include "io/event_log.h"
#include "io/progress.h"
#include "io/tensorboard.h"
#include "train/image_run.h"
#include "train/optimization.h"
#include "train/ranks.h"
#include "train/trained_model.h"

namespace weft::train {

/// Sums over the batches of an epoch that are done, and their means.
struct EpochStatistics {
  double loss_sum = 0;
  int64_t correct = 0;
  int64_t images = 0;

  double loss() const { return images ? loss_sum / static_cast<double>(images) : NAN; }
  double accuracy() const {
    return images ? static_cast<double>(correct) / static_cast<double>(images) : NAN;
  }
};

/// What an epoch came to; NaN before the first.
struct EpochResult {
  double loss = NAN;
  double train_accuracy = NAN;
  Score validation = {NAN, NAN, 0};
};

/// Where a run stands: what a checkpoint records besides the model and the optimizer.
struct RunState {
  int64_t step = 0;   // steps done
  int64_t epoch = 0;  // epochs done
  int64_t batch = 0;  // of the epoch: batches done
  EpochStatistics statistics;
  EpochResult last_epoch;
};

nlohmann::json to_json(const RunState& state);
/// Of an object that holds "progress" and "last_epoch" among others. Throws nlohmann's exceptions.
RunState run_state_from_json(const nlohmann::json& json);

/// What a run sets out with.
struct Outset {
  const TrainedModel& trained;
  const data::Splits& splits;
  const Ranks& ranks;
  int64_t steps_per_epoch = 0;
  std::vector<std::string> weight_notes;  // what was done to make config.weights fit
};

class RunReport {
 public:
  /// `config` must outlive it.
  RunReport(const Config& config, bool is_main, bool json)
      : config_(config), is_main_(is_main), json_(json), log_(is_main && json ? stdout : nullptr) {}

  /// Before the first step; curves go to `output`, and the configuration as config.yaml.
  void begin(const Outset& outset, const RunState& state, const io::Path& output);
  /// After a step, whose loss was `loss`.
  void step(const RunState& state, double loss, const Optimization& optimization,
            double images_per_second);
  /// After an epoch, with state.epoch its number, counted from 0.
  void epoch(const RunState& state, double images_per_second, double seconds);
  void interrupted(const RunState& state, const io::Path& output, const io::Path& checkpoint) const;
  void done(const RunState& state, const RunResult& result, double images_per_second,
            const io::Path& output) const;

  /// Where progress bars are drawn.
  std::FILE* progress_stream() const;

 private:
  void print_heading(const Outset& outset, const RunState& state) const;

  const Config& config_;
  const bool is_main_, json_;
  const io::EventLog log_;
  std::optional<io::Table> table_;
  std::optional<io::TensorBoardWriter> curves_;
};

}  // namespace weft::train
