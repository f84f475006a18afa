#include "train/trainer/weight_averaging.h"

#include "autograd/ops.h"
#include "train/trainer/trainer.h"

namespace weft::train {
namespace {

Tensors kept_of(const Trainer& trainer) { return trainer.optimizer().parameters(); }

Tensors copies_of(const Tensors& tensors) {
  const NoGrad guard;
  Tensors copies;
  for (const Tensor& x : tensors) copies.push_back(ops::clone(detach(x)));
  return copies;
}

/// Copies in which averages are formed.
Tensors wide_copies_of(const Tensors& tensors) {
  Tensors copies = copies_of(tensors);
  for (Tensor& x : copies) x = ops::cast(x, x.dtype() == DType::f64 ? DType::f64 : DType::f32);
  return copies;
}

void set_weights(Trainer& trainer, const Tensors& values) {
  const NoGrad guard;
  Tensors weights = kept_of(trainer);
  for (size_t i = 0; i < weights.size(); ++i) {
    ops::copy_(weights[i], ops::cast(values[i], weights[i].dtype()));
  }
  // As after a step: what was gathered of the weights is not theirs any more.
  trainer.fabric().strategy().after_step();
}

}  // namespace

EmaWeightAveraging::EmaWeightAveraging(EmaOptions options) : options_(options) {
  WEFT_CHECK(options.decay >= 0 && options.decay < 1, "decay: expected a number in [0, 1), got {}",
             options.decay);
  WEFT_CHECK(options.update_every_n_steps > 0,
             "update_every_n_steps: expected a positive number, got {}",
             options.update_every_n_steps);
}

void EmaWeightAveraging::on_fit_start(Trainer& trainer, TrainingModule& module) {
  WEFT_CHECK(trainer.optimizers() == 1 && module.models().size() == 1,
             "EmaWeightAveraging: of one model with one optimizer, got {} and {}",
             module.models().size(), trainer.optimizers());
}

void EmaWeightAveraging::on_train_batch_end(Trainer& trainer, TrainingModule&, const Tensor&,
                                            const Batch&, int64_t) {
  const int64_t since = trainer.global_step() - options_.update_starting_at_step;
  if (!trainer.has_stepped() || since < 0 || since % options_.update_every_n_steps != 0) return;
  const Tensors weights = kept_of(trainer);
  if (averages_.empty()) {
    averages_ = wide_copies_of(weights);
    return;
  }
  const NoGrad guard;
  for (size_t i = 0; i < weights.size(); ++i) {
    Tensor& average = averages_[i];
    const Tensor weight = ops::cast(detach(weights[i]), average.dtype());
    average = average * options_.decay + weight * (1 - options_.decay);
  }
}

void EmaWeightAveraging::on_validation_start(Trainer& trainer, TrainingModule&) {
  if (averages_.empty()) return;
  aside_ = copies_of(kept_of(trainer));
  set_weights(trainer, averages_);
}

void EmaWeightAveraging::on_validation_end(Trainer& trainer, TrainingModule&) {
  if (aside_.empty()) return;
  set_weights(trainer, aside_);
  aside_.clear();
}

void EmaWeightAveraging::on_train_end(Trainer& trainer, TrainingModule&) {
  if (!averages_.empty()) set_weights(trainer, averages_);
}

NamedTensors EmaWeightAveraging::tensors(Trainer& trainer, TrainingModule& module) {
  if (averages_.empty()) return {};
  const Tensors weights = copies_of(kept_of(trainer));
  set_weights(trainer, averages_);
  NamedTensors whole = trainer.fabric().strategy().model_state(module.model());
  const NoGrad guard;
  for (auto& [name, tensor] : whole) tensor = ops::clone(detach(tensor));
  set_weights(trainer, weights);
  return whole;
}

void EmaWeightAveraging::load_tensors(Trainer& trainer, TrainingModule& module,
                                      const NamedTensors& whole) {
  averages_.clear();
  if (whole.empty()) return;
  const Tensors weights = copies_of(kept_of(trainer));
  trainer.fabric().strategy().load_model_state(module.model(), whole);
  averages_ = wide_copies_of(kept_of(trainer));
  set_weights(trainer, weights);
}

}  // namespace weft::train
