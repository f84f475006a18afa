// What a run says: a heading and a table for a person, or JSON events for a program; curves for
// TensorBoard, and the same figures as metrics.jsonl and metrics.csv. Rank 0 speaks for all; the
// reports of the others are silent.
//
// The figures of a step (train/runs/run_figures.h): loss/step, lr, loss_scale (where the loss is
// scaled), grad_norm, images_per_second, memory_bytes. Those of an epoch: epoch, loss/train,
// accuracy/train, loss/validation, accuracy/validation.
#pragma once

#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "data/sets/open.h"
#include "dist/strategy/strategy.h"
#include "io/event_log.h"
#include "io/progress.h"
#include "train/findings.h"
#include "train/layer_watch.h"
#include "train/runs/run_checkpoints.h"
#include "train/runs/run_figures.h"
#include "train/runs/run_options.h"
#include "train/stop_signals.h"
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
/// Of an object that holds "progress" and "last_epoch" among others. Throws Error naming a key.
RunState run_state_from_json(const nlohmann::json& json);

/// What a run sets out with.
struct Outset {
  const TrainedModel& trained;
  const data::Splits& splits;
  const dist::Strategy* strategy = nullptr;  // null: one micro-batch on one rank
  int64_t global_batch = 0;
  int64_t state_tensors = 0;  // of the optimizer, for each parameter
  int64_t steps_per_epoch = 0;
  const std::vector<std::string>& weight_notes;  // what was done to make config.weights fit
};

/// What a step came to.
struct StepFigures {
  double loss = 0;
  double lr = 0;
  std::optional<double> loss_scale = {};
  double grad_norm = 0;
  bool was_skipped = false;
  int64_t images = 0;
  double seconds = 0;
  double mean_images_per_second = 0;  // since the epoch began
  size_t memory_bytes = 0;            // of tensors on the device, at their most
  std::vector<LayerFigures> layers = {};
};

class RunReport {
 public:
  /// `config` must outlive it. Where an event cannot be written the run is asked to stop.
  RunReport(const Config& config, bool is_main, bool json)
      : config_(config),
        is_main_(is_main),
        json_(json),
        log_(is_main && json ? stdout : nullptr, StopSignals::request) {}

  /// Before the first step; curves and metrics go to `output`, and the configuration as
  /// config.yaml. Metrics of a run that goes on are cut back to its checkpoint.
  void begin(const Outset& outset, const RunState& state, const io::Path& output);
  void step(const RunState& state, const StepFigures& figures);
  /// After a validation within an epoch of so many batches.
  void validation(const RunState& state, int64_t batches);
  /// After an epoch, with state.epoch its number, counted from 0.
  /// is_validated: at the epoch's end; else the state has the figures of an earlier validation.
  void epoch(const RunState& state, bool is_validated, double images_per_second, double seconds);
  /// After the last validation.
  void findings(const Findings& findings, const io::Path& output);
  void interrupted(const RunState& state, const RunCheckpoints& checkpoints);
  void done(const RunState& state, const RunResult& result, double images_per_second,
            const RunCheckpoints& checkpoints);

  /// Where progress bars are drawn.
  std::FILE* progress_stream() const;

 private:
  void print_heading(const Outset& outset, const RunState& state) const;

  const Config& config_;
  const bool is_main_, json_;
  io::EventLog log_;
  std::optional<io::Table> table_;
  std::optional<RunFigures> figures_;
};

}  // namespace weft::train
