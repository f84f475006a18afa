#include "cli/training_step.h"

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "train/trained_model.h"

namespace weft::cli {

TrainingStep::TrainingStep(const StepOptions& options)
    : precision_(train::autocast_of(options.precision)) {
  manual_seed(0);
  model_ = models::make_model(options.model, options.options);
  model_->to(options.device);
  const int64_t size = model_->image_size();
  images_ = ops::to(ops::randn({options.batch, model_->channels(), size, size}), options.device);
  std::vector<int64_t> labels(options.batch);
  for (int64_t i = 0; i < options.batch; ++i) labels[i] = i % model_->classes();
  labels_ = ops::to(Tensor::from(labels, {options.batch}), options.device);
  optimizer_ =
      std::make_unique<optim::AdamW>(model_->named_parameters(), optim::AdamWOptions{.lr = 1e-4});
}

void TrainingStep::run(const std::function<void(const char*)>& entering) {
  const auto enter = [&](const char* phase) {
    if (entering) entering(phase);
  };
  enter("forward");
  optimizer_->zero_grad();
  {
    // Around both: a weight that was cast forward is used again backward.
    const Autocast mode(precision_);
    const Tensor logits = ops::cast((*model_)(images_), DType::f32);
    const Tensor loss = ops::cross_entropy(logits, labels_);
    enter("backward");
    backward(loss);
  }
  enter("update");
  optimizer_->step();
}

Tensor TrainingStep::infer() {
  const NoGrad guard;
  const Autocast mode(precision_);
  return (*model_)(images_);
}

}  // namespace weft::cli
