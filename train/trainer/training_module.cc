#include "train/trainer/training_module.h"

#include "core/error.h"
#include "train/trainer/trainer.h"

namespace weft::train {

Tensor TrainingModule::training_step(const Batch& batch, int64_t) {
  return loss(model()(input(batch)), batch);
}

Tensor TrainingModule::loss(const Tensor&, const Batch&) {
  WEFT_FAIL(
      "trainer: the module defines no loss(output, batch); strategy pipeline needs it, others take "
      "training_step() as well");
}

double TrainingModule::share(const Batch&, int64_t) const {
  return 1.0 / static_cast<double>(trainer().options().accumulate_grad_batches *
                                   trainer().fabric().data_size());
}

void TrainingModule::validation_step(const Batch&, int64_t) {
  WEFT_FAIL("trainer: the module defines no validation_step()");
}

void TrainingModule::test_step(const Batch&, int64_t) {
  WEFT_FAIL("trainer: the module defines no test_step()");
}

Tensor TrainingModule::predict_step(const Batch& batch, int64_t) { return model()(input(batch)); }

Trainer& TrainingModule::trainer() const {
  WEFT_CHECK(trainer_, "module: no Trainer is at work on it");
  return *trainer_;
}

optim::Optimizer& TrainingModule::optimizer(size_t index) const {
  return trainer().optimizer(index);
}

optim::Scheduler& TrainingModule::lr_scheduler(size_t index) const {
  optim::Scheduler* const scheduler = trainer().scheduler(index);
  WEFT_CHECK(scheduler, "trainer: configure_optimizers() gave optimizer {} no schedule", index);
  return *scheduler;
}

void TrainingModule::manual_backward(const Tensor& loss) const {
  WEFT_CHECK(!automatic_optimization,
             "trainer: manual_backward() in a module whose automatic_optimization is true: return "
             "the loss instead");
  trainer().fabric().backward(loss);
}

void TrainingModule::log(const std::string& name, const Tensor& value, const LogOptions& options) {
  trainer().log_value(name, value, options);
}

}  // namespace weft::train
