// The checkpoints of a Trainer's fit as those of `weft train`: directories step-N
// (train/checkpoint.h) after each epoch, where the run stops, every so often, and where a run goes
// by a metric of the best states. Besides the model, the optimizer with fp8's scales, the loss
// scale and the states of the fit's callbacks they hold what the run's record says.
#pragma once

#include <functional>
#include <optional>

#include "io/event_log.h"
#include "train/checkpoint.h"
#include "train/config.h"
#include "train/run_directory.h"
#include "train/runs/run_options.h"
#include "train/trainer/callback.h"
#include "train/trainer/top_k.h"

namespace weft::train {

/// What kind of run it is, and where it stands.
struct RunRecord {
  std::function<nlohmann::json(Trainer&)> save;  // every rank calls
  /// Throws nlohmann's exceptions, and Error for a place that the run cannot go on from.
  std::function<void(Trainer&, const nlohmann::json&)> load;
};

class RunCheckpoints : public Callback {
 public:
  /// With a checkpoint, read from `step`, the fit goes on from it; one without a model's weights is
  /// of a model that has them. The latest two are kept, and the config's save_top_k. To be called
  /// after the callbacks whose states it keeps.
  RunCheckpoints(const Config& config, RunRecord record, std::optional<Checkpoint> start,
                 io::Path step);

  /// Claims the run's directory, or that of the run it goes on with, on rank 0: last of all that
  /// can fail before the first step, so that a run that cannot start leaves nothing behind. Throws
  /// Error where it is another's, and where a checkpoint of the trainer's optimizer and of the
  /// model has no room there.
  void claim_directory(const RunOptions& options, Trainer& trainer, const nn::Module& model);
  /// Empty before that, and on other ranks.
  const io::Path& output() const { return output_; }
  /// Writes the model's weights beside the checkpoints. Every rank calls.
  void write_final_weights(Fabric& fabric, nn::Module& model, io::Metadata metadata) const;
  /// Empty before the first.
  const io::Path& latest() const { return latest_; }
  /// The best that was saved: "best       runs/a/step-80 (loss/validation 0.2976)\n". Nothing where
  /// none is looked for, and before the first.
  std::string describe_best() const;
  /// Tells of the end in the event "done", with the best as "best" and "best_score", and on
  /// standard error of steps that were left out, if any were. Throws Error where an event was not
  /// written.
  void report_done(io::EventLog& log, nlohmann::ordered_json event) const;
  /// Tells that the run stopped after `step`, and how it goes on: on standard error, and as the
  /// event "interrupted", whose checkpoint is null where nothing was saved.
  void report_interrupted(io::EventLog& log, int64_t step) const;

  /// Throws Error naming a checkpoint of another model, optimizer or place.
  void on_fit_start(Trainer& trainer, TrainingModule& module) override;
  void on_train_batch_end(Trainer& trainer, TrainingModule& module, const Tensor& loss,
                          const Batch& batch, int64_t index) override;
  void on_save_point(Trainer& trainer, TrainingModule& module) override;
  std::string state_key() const override { return top_k_ == 0 ? "" : "best"; }
  nlohmann::json state_dict() const override;
  void load_state_dict(const nlohmann::json& state) override;

 private:
  void take_up(const Checkpoint& start, Trainer& trainer, TrainingModule& module);
  bool joins_best(const Trainer& trainer);
  void save(Trainer& trainer, TrainingModule& module);
  void save_sharded(Trainer& trainer, TrainingModule& module);
  nlohmann::json state_of(Trainer& trainer) const;
  KeptCheckpoints kept() const;
  io::Path path_of_best() const;

  const SaveEvery every_;
  const std::string name_, monitor_;
  const int64_t top_k_;
  TopK<int64_t> best_;  // steps
  const RunRecord record_;
  std::optional<Checkpoint> start_;
  std::optional<RunDirectory> directory_;
  io::Path latest_, output_;
  double saved_at_ = 0;                    // seconds of the fit
  int64_t steps_ = 0, skipped_steps_ = 0;  // of this process
};

}  // namespace weft::train
