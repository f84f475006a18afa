#include "cli/step/training_step.h"

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "cli/command.h"

namespace weft::cli {

void add_model_size_options(Command& command, models::ModelOptions& options) {
  command.option("--image-size", options.image_size, "Height and width of an image, in pixels",
                 {.check = positive(), .usual = "the model's own"});
  command.option("--classes", options.classes, "Number of classes",
                 {.check = positive(), .usual = "the model's own"});
  command.flag("--checkpoint-activations", options.checkpoint_activations,
               "Recompute activations in the backward pass");
}

Tensor cyclic_labels(int64_t rows, int64_t classes) {
  std::vector<int64_t> values(rows);
  for (int64_t i = 0; i < rows; ++i) values[i] = i % classes;
  return Tensor::from(values, {rows});
}

TrainingStep::TrainingStep(const StepOptions& options)
    : precision_(train::find_precision(options.precision)),
      accumulation_(kernels::parse_accumulation(options.matmul_numerics)),
      scaler_({.enabled = precision_.scales_loss()}) {
  train::check_supported(precision_, train::capabilities_of(accumulation_));
  train::check_supported(precision_, train::capabilities_of(options.device));
  manual_seed(0);
  model_ = models::make_model(options.model, options.options);
  model_->to(options.device, precision_.parameters);
  const int64_t size = model_->image_size();
  images_ = ops::to(ops::randn({options.batch, model_->channels(), size, size}), options.device);
  labels_ = ops::to(cyclic_labels(options.batch, model_->classes()), options.device);
  optimizer_ = optim::make_optimizer(options.optimizer, model_->named_parameters(), {{"lr", 1e-4}});
}

void TrainingStep::run(const std::function<void(const char*)>& entering) {
  if (graph_) {
    scaler_.advance(*optimizer_);
    graph_->launch();
    return;
  }
  packed_.reset();
  inference_.reset();
  const auto enter = [&](const char* phase) {
    if (entering) entering(phase);
  };
  enter("forward");
  optimizer_->zero_grad();
  {
    // Around both: a weight that was cast forward is used again backward.
    const train::PrecisionScope scope(precision_, accumulation_, &fp8_);
    const Tensor logits = train::forward_logits(*model_, images_, precision_);
    const Tensor loss = ops::cross_entropy(logits, labels_);
    enter("backward");
    backward(scaler_.scale(loss));
  }
  enter("update");
  has_stepped_ |= scaler_.step(*optimizer_);
  scaler_.update();
  fp8_.update();
}

void TrainingStep::capture() {
  const Device device = images_.device();
  WEFT_CHECK(device.type == DeviceType::cuda, "graph: expected a CUDA device, got {}",
             to_string(device));
  WEFT_CHECK(!precision_.is_fp8(),
             "graph: {} waits for the device in every step to choose its scales", precision_.name);
  // The optimizer's state begins with the first step that fp16's loss scale does not skip.
  constexpr int kMostTries = 64;
  for (int i = 0; !has_stepped_ && i < kMostTries; ++i) run();
  auto graph = std::make_unique<DeviceGraph>(device);
  graph->capture([&] { run(); });
  graph_ = std::move(graph);
}

Tensor TrainingStep::infer() {
  const NoGrad guard;
  if (!inference_) inference_.emplace(precision_, accumulation_, &fp8_);
  if (!packed_) packed_.emplace();
  return train::forward_logits(*model_, images_, precision_);
}

}  // namespace weft::cli
