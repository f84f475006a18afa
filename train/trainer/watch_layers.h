// Looks at every layer each so many steps, between the gradients and the optimizer's step
// (train/layer_watch.h): the figures are logged with the step's.
//
//   std::make_shared<train::WatchLayers>(10)
#pragma once

#include <cstdint>
#include <vector>

#include "train/layer_watch.h"
#include "train/trainer/callback.h"

namespace weft::train {

class WatchLayers : public Callback {
 public:
  /// Throws Error unless the number of steps is positive.
  explicit WatchLayers(int64_t every_n_steps = 10);

  /// Of the latest step, on rank 0; empty where it was not looked at.
  const std::vector<LayerFigures>& latest() const { return layers_; }

  /// Throws Error under a strategy of which no rank has whole gradients.
  void on_fit_start(Trainer& trainer, TrainingModule& module) override;
  void on_before_optimizer_step(Trainer& trainer, TrainingModule& module,
                                optim::Optimizer& optimizer) override;

 private:
  const int64_t every_n_steps_;
  std::vector<LayerFigures> layers_;
};

}  // namespace weft::train
