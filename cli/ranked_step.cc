#include "cli/ranked_step.h"

#include <vector>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "models/resnet.h"
#include "models/vit.h"
#include "nn/loss.h"

namespace weft::cli {
namespace {

std::unique_ptr<models::Classifier> make_model(const RankedStepOptions& options) {
  manual_seed(0);
  return models::make_model(options.model, options.options);
}

}  // namespace

dist::WrapPolicy unit_policy() {
  return dist::wrap_modules<models::EncoderBlock, models::ResidualBlock>();
}

dist::ModelLayout layout_of_model(const RankedStepOptions& options) {
  return dist::layout_of(*make_model(options), unit_policy());
}

RankedStep::RankedStep(const RankedStepOptions& options, const dist::CommunicatorPtr& world) {
  {
    const MemoryScope scope(MemoryKind::kParameters);
    model_ = make_model(options);
  }
  strategy_ =
      dist::make_strategy({.name = options.strategy, .shard_size = options.shard_size}, world);
  strategy_->wrap(*model_, unit_policy());
  optimizer_ = std::make_unique<optim::AdamW>(
      strategy_->groups(optim::ParameterGroups(model_->named_parameters())),
      optim::AdamWOptions{.lr = 1e-4});
  const int64_t size = model_->image_size();
  images_ = ops::randn({options.batch, model_->channels(), size, size});
  std::vector<int64_t> classes(options.batch);
  for (int64_t i = 0; i < options.batch; ++i) classes[i] = i % model_->classes();
  labels_ = Tensor::from(classes, {options.batch});
  weight_ = 1.0 / world->size();
}

void RankedStep::run(const std::function<void(const char*)>& entering) {
  const auto enter = [&](const char* phase) {
    if (entering) entering(phase);
  };
  enter("forward");
  optimizer_->zero_grad();
  const Tensor loss = ops::cross_entropy(strategy_->forward(*model_, images_), labels_) * weight_;
  enter("backward");
  backward(loss);
  enter("optimizer");
  optimizer_->step();
  strategy_->after_step();
}

}  // namespace weft::cli
