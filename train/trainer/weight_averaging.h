// An exponential moving average of the weights (EMA), which validations measure, a fit ends with,
// and checkpoints hold as the model's weights, so that whoever loads one has what was measured.
// Polyak, Juditsky, 1992; as used by Tarvainen, Valpola, arXiv:1703.01780.
//
//   average = decay average + (1 - decay) weight
//
// after a step; the first step that counts sets it to the weights. Each rank averages what it keeps
// of the parameters, in f32 where they are narrower. Buffers are the model's. Weights in 16 bits,
// or that rest in few (autograd/resting.h), round averages in their place: so a checkpoint has
// these once more as they are, beside the weights that are trained. A fit with this callback goes
// on from both, exactly; one without it goes on from the averages.
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
  /// A validation that throws leaves the weights, not their averages.
  void on_exception(Trainer& trainer, TrainingModule& module, const std::exception& error) override;
  void on_save_start(Trainer& trainer, TrainingModule& module) override;
  void on_save_end(Trainer& trainer, TrainingModule& module) override;
  std::string state_key() const override { return "EmaWeightAveraging"; }
  NamedTensors tensors(Trainer& trainer, TrainingModule& module) override;
  void load_tensors(Trainer& trainer, TrainingModule& module, const NamedTensors& whole) override;

 private:
  void set_weights(Trainer& trainer, const Tensors& values);
  void put_in_place(Trainer& trainer);
  void put_back(Trainer& trainer);

  const EmaOptions options_;
  NamedTensors weights_;  // what this rank keeps of the optimizer's parameters; maybe none
  Tensors averages_;      // of weights_, as the next
  Tensors aside_;         // the weights, while the averages are in their place
  bool has_begun_ = false, is_in_place_ = false;
  bool has_ended_ = false;  // the fit: the averages stay in place
};

}  // namespace weft::train
