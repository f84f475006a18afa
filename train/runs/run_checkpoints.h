// The checkpoints of a Trainer's fit as those of `weft train`: directories step-N
// (train/checkpoint.h) after each epoch, where the run stops, and every so often.
//
//   state.json's state   what describe() says; "trainer", "optimizer", "schedule", "loss_scaler"
#pragma once

#include <functional>
#include <optional>

#include "train/checkpoint.h"
#include "train/config.h"
#include "train/trainer/callback.h"

namespace weft::train {

class RunCheckpoints : public Callback {
 public:
  /// `describe`: what else to save. With a checkpoint, read from `step`, the fit goes on from it.
  /// The latest two are kept.
  RunCheckpoints(SaveEvery every, std::function<nlohmann::json()> describe,
                 std::optional<Checkpoint> start, io::Path step);

  /// The run's; before the first save point.
  void set_directory(const io::Path& output) { output_ = output; }
  /// Empty before the first.
  const io::Path& latest() const { return latest_; }

  /// Throws Error naming a checkpoint of another model, optimizer or place.
  void on_fit_start(Trainer& trainer, TrainingModule& module) override;
  void on_save_point(Trainer& trainer, TrainingModule& module) override;

 private:
  void take_up(const Checkpoint& start, Trainer& trainer, nn::Module& model);

  const SaveEvery every_;
  const std::function<nlohmann::json()> describe_;
  std::optional<Checkpoint> start_;
  io::Path latest_, output_;
  double saved_at_ = 0;  // seconds of the fit
};

}  // namespace weft::train
