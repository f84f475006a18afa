// How a run's parameters change: the optimizer over groups of them, the schedule of its learning
// rate, the clipping of gradients, the scale of fp16's loss and those of fp8's tensors, all as the
// run's Config says.
//
//   RunOptimizer optimizer(config, model, ranks, steps);
//   optimizer.begin_step();
//   backward(optimizer.scaled(loss));  // of each micro-batch, in config's precision
//   if (optimizer.finish_gradients()) optimizer.step(step);
//
// Everything here that lasts from step to step is part of a checkpoint.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "io/files.h"
#include "nn/module.h"
#include "optim/grad_scaler.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "train/config.h"
#include "train/ranks.h"

namespace weft::train {

/// config's optimizer over groups of the model's parameters: without weight decay of vectors and
/// embeddings, and with layer decay where it is asked for.
std::unique_ptr<optim::Optimizer> make_optimizer(const Config& config, nn::Module& model);
/// The factor on config.lr at each step of a run of so many.
optim::Schedule make_schedule(const Config& config, int64_t steps);

class RunOptimizer {
 public:
  /// Makes the optimizer and sets it up, with the model, in ranks' Fabric, for a run of so many
  /// steps. config, model and ranks must outlive it.
  RunOptimizer(const Config& config, nn::Module& model, Ranks& ranks, int64_t steps);

  void begin_step() { optimizer_->zero_grad(); }
  Tensor scaled(const Tensor& loss) { return fabric_.scaled(loss); }
  /// To be called after the last backward. False when the gradients of any rank are known not to
  /// be finite, and that is not due to the loss's scale.
  bool finish_gradients();
  /// Clips the gradients and takes optimizer step number `step`, counted from 0, at the schedule's
  /// learning rate. Where a scaled loss has overflowed on any rank, the step is skipped.
  void step(int64_t step);
  /// Goes on to the next step with everything as it is.
  void skip_step();

  Tensors parameters() const { return optimizer_->parameters(); }
  int64_t state_tensors() const { return optimizer_->state_tensors(); }
  // Figures of the step finished last.
  double lr() const { return optimizer_->lr(); }
  bool scales_loss() const { return fabric_.scaler().is_enabled(); }
  double loss_scale() const { return last_scale_; }
  /// Of the gradients before they were clipped, over all ranks; none where nothing asks for it.
  std::optional<double> grad_norm() const { return norm_; }
  bool was_skipped() const { return last_was_skipped_; }

  /// The optimizer's state, for a checkpoint. Every rank calls this; rank 0 gets all of it.
  NamedTensors tensors();
  nlohmann::json settings() const;
  /// Starts to save the model's and the optimizer's state, each rank its part, into rank 0's
  /// directory (Fabric::async_save).
  void save_sharded(const io::Path& directory, const std::function<void()>& then);
  /// Takes up what save_sharded() has left, the model too, and settings().
  void load_sharded(const io::Path& directory, const nlohmann::json& settings);
  /// Takes up a checkpoint's state. Throws Error for a state of another optimizer or precision.
  void load(const NamedTensors& tensors, const nlohmann::json& settings);

 private:
  const Config& config_;
  nn::Module& model_;
  Ranks& ranks_;
  Fabric& fabric_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::Schedule schedule_;
  std::optional<double> norm_;
  double last_scale_ = 1;
  bool last_was_skipped_ = false;
};

}  // namespace weft::train
