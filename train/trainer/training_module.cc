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

Trainer& TrainingModule::trainer() const {
  WEFT_CHECK(trainer_, "module: no Trainer is at work on it");
  return *trainer_;
}

void TrainingModule::log(const std::string& name, const Tensor& value, const LogOptions& options) {
  trainer().log_value(name, value, options);
}

}  // namespace weft::train
