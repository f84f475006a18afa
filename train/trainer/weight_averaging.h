// An exponential moving average of the weights (EMA), which validations measure and a fit ends
// with. Polyak, Juditsky, 1992; as used by Tarvainen, Valpola, arXiv:1703.01780.
//
//   average = decay average + (1 - decay) weight
//
// after a step; the first step that counts sets it to the weights. Each rank averages what it keeps
// of the parameters, in f32 where they are narrower. Buffers are the model's. A checkpoint has the
// averages in the weights' dtype beside the weights.
#pragma once

#include <cstdint>
#include <string>

#include "train/trainer/callback.h"

namespace weft::train {

struct EmaOptions {
  double decay = 0.999;
  int64_t update_every_n_steps = 1;
  int64_t update_starting_at_step = 0;
};

class EmaWeightAveraging : public Callback {
 public:
  /// Throws Error for options out of range.
  explicit EmaWeightAveraging(EmaOptions options = {});

  /// Of what this rank keeps of the optimizer's parameters, in their order; empty before the first.
  const Tensors& averages() const { return averages_; }

  void on_fit_start(Trainer& trainer, TrainingModule& module) override;
  void on_train_batch_end(Trainer& trainer, TrainingModule& module, const Tensor& loss,
                          const Batch& batch, int64_t index) override;
  void on_validation_start(Trainer& trainer, TrainingModule& module) override;
  void on_validation_end(Trainer& trainer, TrainingModule& module) override;
  void on_train_end(Trainer& trainer, TrainingModule& module) override;
  std::string state_key() const override { return "EmaWeightAveraging"; }
  NamedTensors tensors(Trainer& trainer, TrainingModule& module) override;
  void load_tensors(Trainer& trainer, TrainingModule& module, const NamedTensors& whole) override;

 private:
  const EmaOptions options_;
  Tensors averages_;
  Tensors aside_;  // the weights, while the averages are in their place
};

}  // namespace weft::train
