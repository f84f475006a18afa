// What a program adds to a Trainer's loop. Every rank calls every hook, in the order of
// TrainerOptions::callbacks.
//
//   struct Stopwatch : train::Callback {
//     void on_train_epoch_end(train::Trainer& trainer, train::TrainingModule&) override { ... }
//   };
#pragma once

#include <cstdint>
#include <exception>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "train/fabric_callback.h"
#include "train/trainer/training_module.h"

namespace weft::train {

class Trainer;

class Callback : public FabricCallback {
 public:
  /// The module is set up and nothing has begun. What cannot work throws here.
  virtual void on_fit_start(Trainer&, TrainingModule&) {}
  /// After the last epoch; not after an exception.
  virtual void on_fit_end(Trainer&, TrainingModule&) {}
  virtual void on_sanity_check_start(Trainer&, TrainingModule&) {}
  virtual void on_sanity_check_end(Trainer&, TrainingModule&) {}
  /// Between these two: the epochs. A state that was saved has been taken up.
  virtual void on_train_start(Trainer&, TrainingModule&) {}
  virtual void on_train_end(Trainer&, TrainingModule&) {}
  virtual void on_train_epoch_start(Trainer&, TrainingModule&) {}
  /// The epoch's means are in trainer.metrics(). After the validation that ends the epoch.
  virtual void on_train_epoch_end(Trainer&, TrainingModule&) {}
  virtual void on_train_batch_start(Trainer&, TrainingModule&, const Batch&, int64_t /*index*/) {}
  /// With the gradients of a step, unscaled and not clipped yet. Not where the module takes its
  /// steps itself.
  virtual void on_before_optimizer_step(Trainer&, TrainingModule&, optim::Optimizer&) {}
  /// `loss` has no history, and is undefined on a pipeline's ranks but the last stage's, and where
  /// a training_step() that takes its steps itself returned none.
  /// trainer.has_stepped() tells whether the batch was the last of a step.
  virtual void on_train_batch_end(Trainer&, TrainingModule&, const Tensor& /*loss*/, const Batch&,
                                  int64_t /*index*/) {}
  /// Not for the sanity check's.
  virtual void on_validation_start(Trainer&, TrainingModule&) {}
  /// Its means are in trainer.metrics(), unless a signal has cut it short and
  /// trainer.has_validated() is false.
  virtual void on_validation_end(Trainer&, TrainingModule&) {}
  /// Also of the sanity check, and of Trainer::validate().
  virtual void on_validation_batch_end(Trainer&, TrainingModule&, const Batch&, int64_t /*index*/) {
  }
  // Of Trainer::test(), which returns its means.
  virtual void on_test_start(Trainer&, TrainingModule&) {}
  virtual void on_test_end(Trainer&, TrainingModule&) {}
  virtual void on_test_batch_end(Trainer&, TrainingModule&, const Batch&, int64_t /*index*/) {}
  /// After a step, and after what follows from it (a validation, the end of an epoch): nothing is
  /// under way, and what trainer.save_checkpoint() saves goes on exactly.
  virtual void on_save_point(Trainer&, TrainingModule&) {}
  /// Between these two save_checkpoint() reads the states below and the model, whose weights as
  /// they are then are those of the checkpoint, which validate(), test() and predict() take. Not
  /// the second after an exception on several ranks.
  virtual void on_save_start(Trainer&, TrainingModule&) {}
  virtual void on_save_end(Trainer&, TrainingModule&) {}
  /// Something threw; it goes on its way afterwards. Ranks may not call each other here.
  virtual void on_exception(Trainer&, TrainingModule&, const std::exception&) {}

  /// What it is saved under, without dots; nothing is saved where that is empty, and two callbacks
  /// of one Trainer need two keys.
  virtual std::string state_key() const { return {}; }
  virtual nlohmann::json state_dict() const;
  /// After on_fit_start.
  virtual void load_state_dict(const nlohmann::json&) {}
  /// Tensors besides: whole whatever the strategy, on rank 0. Every rank calls.
  virtual NamedTensors tensors(Trainer&, TrainingModule&) { return {}; }
  /// After load_state_dict(); the model has the checkpoint's weights.
  virtual void load_tensors(Trainer&, TrainingModule&, const NamedTensors&) {}
};

}  // namespace weft::train
