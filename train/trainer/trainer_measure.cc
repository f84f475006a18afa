// What a Trainer does with a module besides training it: validate, test, predict.
#include <algorithm>
#include <deque>

#include "autograd/random.h"
#include "autograd/tape.h"
#include "core/scoped_value.h"
#include "nn/modes.h"
#include "train/stop_signals.h"
#include "train/trainer/trainer.h"

namespace weft::train {

/// The module's own functions, and who hears of each batch.
struct Trainer::Measurement {
  void (TrainingModule::*start)();
  void (TrainingModule::*step)(const Batch&, int64_t);
  void (TrainingModule::*end)();
  void (Callback::*on_batch_end)(Trainer&, TrainingModule&, const Batch&, int64_t);

  static const Measurement kValidation, kTest;
};

const Trainer::Measurement Trainer::Measurement::kValidation = {
    &TrainingModule::on_validation_epoch_start, &TrainingModule::validation_step,
    &TrainingModule::on_validation_epoch_end, &Callback::on_validation_batch_end};
const Trainer::Measurement Trainer::Measurement::kTest = {
    &TrainingModule::on_test_epoch_start, &TrainingModule::test_step,
    &TrainingModule::on_test_epoch_end, &Callback::on_test_batch_end};

namespace {

/// While it lives a module's models evaluate.
class Evaluation {
 public:
  explicit Evaluation(TrainingModule& module) {
    for (const auto& [name, model] : module.models()) models_.emplace_back(*model);
  }

 private:
  std::deque<nn::EvalScope> models_;
};

}  // namespace

/// Since the last step in training each rank has statistics of its own batch, and rank 0's are
/// saved.
void Trainer::share_buffers(TrainingModule& module) {
  for (const auto& [name, model] : module.models()) fabric_.share_buffers(*model);
}

/// Nothing where it `ends_early` and a signal has come.
std::optional<NamedValues> Trainer::measure(const Measurement& how, TrainingModule& module,
                                            RankBatches& batches, int64_t count, bool ends_early) {
  const NoGrad guard;
  const ScopedValue phase(phase_, Phase::kMeasuring);
  share_buffers(module);
  measured_means_.clear();
  batches.seek({0, 0});
  (module.*how.start)();
  for (int64_t i = 0; i < count; ++i) {
    if (ends_early && StopSignals::requested()) return std::nullopt;
    const Batch batch = next_of(batches, i, count);
    led(module, [&] {
      (module.*how.step)(batch, i);
      return Tensor();
    });
    call(how.on_batch_end, *this, module, batch, i);
  }
  weight_ = fabric_.strategy().counts();
  (module.*how.end)();
  return measured_means_.means(fabric_);
}

// In a fit.

void Trainer::check_sanity() {
  if (!validation_ || options_.num_sanity_val_steps == 0) return;
  const Generator before = generator();
  call(&Callback::on_sanity_check_start, *this, *module_);
  const Evaluation evaluation(*module_);
  const int64_t asked = options_.num_sanity_val_steps;
  measure(Measurement::kValidation, *module_, *validation_,
          asked < 0 ? validation_batches_ : std::min(asked, validation_batches_), false);
  call(&Callback::on_sanity_check_end, *this, *module_);
  generator() = before;
}

void Trainer::check_validation() {
  const Generator before = generator();
  call(&Callback::on_validation_start, *this, *module_);
  const Evaluation evaluation(*module_);
  const std::optional<NamedValues> means =
      measure(Measurement::kValidation, *module_, *validation_, validation_batches_,
              heeds_signals_ && fabric_.size() == 1);
  has_validated_ = means.has_value();
  is_validation_due_ = !means;
  if (!means) generator() = before;  // it is repeated with the same random numbers
  if (means) {
    publish(*means);
    validated_.emplace();
    for (const auto& [name, value] : *means) validated_->push_back(name);
  }
  call(&Callback::on_validation_end, *this, *module_);
}

// Outside of one.

template <class Measure>
auto Trainer::with_module(TrainingModule& module, const nn::ModelStructure& structure,
                          const BatchSource& source, const std::string& checkpoint,
                          const Limit& limit, const char* option, const Measure& measure) {
  check_idle(module);
  launch_alone();
  const ScopedValue at_work(module.trainer_, this);
  set_up(module, structure);
  if (!checkpoint.empty()) fabric_.load(checkpoint, model_states(module));
  const std::unique_ptr<RankBatches> batches = source.share(fabric_);
  const Evaluation evaluation(module);
  return measure(*batches, limit.of(batches->per_epoch(), option));
}

NamedValues Trainer::validate_module(TrainingModule& module, const nn::ModelStructure& structure,
                                     const BatchSource& source, const std::string& checkpoint) {
  return with_module(module, structure, source, checkpoint, options_.limit_val_batches,
                     "limit_val_batches", [&](RankBatches& batches, int64_t count) {
                       const bool ends_early = fabric_.size() == 1 && StopSignals::are_watched();
                       return measure(Measurement::kValidation, module, batches, count, ends_early)
                           .value_or(NamedValues());
                     });
}

NamedValues Trainer::test_module(TrainingModule& module, const nn::ModelStructure& structure,
                                 const BatchSource& source, const std::string& checkpoint) {
  return with_module(module, structure, source, checkpoint, options_.limit_test_batches,
                     "limit_test_batches", [&](RankBatches& batches, int64_t count) {
                       call(&Callback::on_test_start, *this, module);
                       const bool ends_early = fabric_.size() == 1 && StopSignals::are_watched();
                       const std::optional<NamedValues> means =
                           measure(Measurement::kTest, module, batches, count, ends_early);
                       call(&Callback::on_test_end, *this, module);
                       return means.value_or(NamedValues());
                     });
}

Tensors Trainer::predict_module(TrainingModule& module, const nn::ModelStructure& structure,
                                const BatchSource& source, const std::string& checkpoint) {
  return with_module(
      module, structure, source, checkpoint, options_.limit_predict_batches,
      "limit_predict_batches", [&](RankBatches& batches, int64_t count) {
        const NoGrad guard;
        share_buffers(module);
        batches.seek({0, 0});
        Tensors outputs;
        for (int64_t i = 0; i < count; ++i) {
          const Batch batch = next_of(batches, i, count);
          outputs.push_back(led(module, [&] { return module.predict_step(batch, i); }));
        }
        return outputs;
      });
}

}  // namespace weft::train
