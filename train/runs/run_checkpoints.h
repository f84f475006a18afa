// The checkpoints of a Trainer's fit as those of `weft train`: directories step-N
// (train/checkpoint.h) after each epoch, where the run stops, and every so often. Besides the
// model, the optimizer with fp8's scales, and the loss scale they hold what the run's record says.
#pragma once

#include <functional>
#include <optional>

#include "io/event_log.h"
#include "train/checkpoint.h"
#include "train/config.h"
#include "train/trainer/callback.h"

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
  /// of a model that has them. The latest two are kept.
  RunCheckpoints(SaveEvery every, RunRecord record, std::optional<Checkpoint> start, io::Path step);

  /// The run's; before the first save point.
  void set_directory(const io::Path& output) { output_ = output; }
  /// Empty before the first.
  const io::Path& latest() const { return latest_; }
  /// Tells that the run stopped after `step`, and how it goes on: on standard error, and as the
  /// event "interrupted", whose checkpoint is null where nothing was saved.
  void report_interrupted(const io::EventLog& log, int64_t step) const;

  /// Throws Error naming a checkpoint of another model, optimizer or place.
  void on_fit_start(Trainer& trainer, TrainingModule& module) override;
  void on_save_point(Trainer& trainer, TrainingModule& module) override;

 private:
  void take_up(const Checkpoint& start, Trainer& trainer, nn::Module& model);
  void save(Trainer& trainer, nn::Module& model);
  void save_sharded(Trainer& trainer, nn::Module& model);
  nlohmann::json state_of(Trainer& trainer) const;

  const SaveEvery every_;
  const RunRecord record_;
  std::optional<Checkpoint> start_;
  io::Path latest_, output_;
  double saved_at_ = 0;  // seconds of the fit
};

}  // namespace weft::train
