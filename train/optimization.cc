#include "train/optimization.h"

#include <algorithm>
#include <cmath>

#include "optim/adam.h"
#include "optim/clip.h"
#include "optim/sgd.h"
#include "train/fine_tuning.h"

namespace weft::train {
namespace {

/// What tells Fp8Scaling's tensors from the optimizer's, which they lie beside in a checkpoint.
constexpr const char* kFp8Key = ".fp8_";

std::unique_ptr<optim::Optimizer> make_optimizer(const Config& config, const nn::Module& model,
                                                 dist::Strategy& strategy) {
  optim::ParameterGroups groups = optim::without_decay_of_vectors(
      trained_parameters(model), {"pos_embedding", "class_token", "positional_emb"});
  if (config.layer_decay < 1) groups = with_layer_decay(groups, config.layer_decay, model);
  groups = strategy.groups(groups);
  if (config.optimizer == "sgd") {
    return std::make_unique<optim::SGD>(groups,
                                        optim::SgdOptions{.lr = config.lr,
                                                          .momentum = config.momentum,
                                                          .weight_decay = config.weight_decay,
                                                          .nesterov = config.momentum > 0});
  }
  if (config.optimizer == "adam") {
    return std::make_unique<optim::Adam>(
        groups, optim::AdamOptions{.lr = config.lr, .weight_decay = config.weight_decay});
  }
  return std::make_unique<optim::AdamW>(
      groups, optim::AdamWOptions{.lr = config.lr, .weight_decay = config.weight_decay});
}

/// The factor on config.lr at each step.
optim::Schedule make_schedule(const Config& config, int64_t steps) {
  if (config.schedule == "one-cycle") {
    return optim::one_cycle(steps, {.warmup_fraction = config.warmup});
  }
  const auto rising = std::min(
      steps - 1, static_cast<int64_t>(std::lround(config.warmup * static_cast<double>(steps))));
  const optim::Schedule rest =
      config.schedule == "cosine" ? optim::cosine(steps - rising) : optim::constant();
  if (rising == 0) return rest;
  return optim::sequential({optim::linear_warmup(rising, 1.0 / static_cast<double>(rising)), rest},
                           {rising});
}

/// Disabled where no loss is scaled; a fixed scale is put back after each step.
optim::GradScaler make_scaler(const Config& config) {
  optim::GradScalerOptions options;
  options.enabled = find_precision(config.precision).scales_loss() && config.loss_scale != "none";
  if (options.enabled && config.loss_scale != "dynamic") {
    options.init_scale = fixed_loss_scale(config);
    return optim::GradScaler(options);
  }
  options.init_scale = config.initial_loss_scale;
  options.growth_interval = config.loss_scale_window;
  options.hysteresis = config.loss_scale_hysteresis;
  options.min_scale = config.min_loss_scale;
  return optim::GradScaler(options);
}

Fp8Options fp8_options(const Config& config) {
  return {.scaling = config.fp8_scaling == "delayed" ? Fp8Options::Scaling::delayed
                                                     : Fp8Options::Scaling::current};
}

}  // namespace

Optimization::Optimization(const Config& config, nn::Module& model, Ranks& ranks, int64_t steps)
    : config_(config),
      model_(model),
      ranks_(ranks),
      optimizer_(make_optimizer(config, model, ranks.strategy())),
      schedule_(make_schedule(config, steps)),
      scaler_(make_scaler(config)),
      fp8_(fp8_options(config)) {}

void Optimization::begin_step() {
  optimizer_->zero_grad();
  scaler_.scale(Tensor::scalar(0));  // a pipeline's stage may have no loss of its own to scale
}

void Optimization::finish_step(int64_t step) {
  double norm = 0, clip = 1;
  if (scaler_.is_enabled()) {
    norm = scaler_.unscale(*optimizer_);
    scaler_.set_found_inf(*optimizer_, ranks_.any(scaler_.found_inf(*optimizer_) != 0));
  }
  if (config_.clip_norm > 0) {
    const bool is_known = scaler_.is_enabled() && !ranks_.is_active();
    if (!is_known) norm = ranks_.grad_norm(optimizer_->parameters());
    clip = optim::clip_coefficient(norm, config_.clip_norm);
  }
  optimizer_->set_lr(config_.lr * schedule_(step));
  last_scale_ = scaler_.get_scale();
  last_was_skipped_ = !scaler_.step(*optimizer_, clip);
  ranks_.strategy().after_step();
  if (config_.loss_scale == "dynamic") {
    scaler_.update();
  } else {
    scaler_.update(scaler_.get_scale());
  }
  if (find_precision(config_.precision).is_fp8() && config_.fp8_scaling == "delayed") {
    const NamedTensors parameters = model_.named_parameters();
    const Tensor amax = fp8_.step_amax(parameters);
    ranks_.max(amax);
    fp8_.set_step_amax(amax, parameters);
  }
  fp8_.update();
}

NamedTensors Optimization::tensors() {
  NamedTensors tensors = ranks_.strategy().optimizer_state(*optimizer_).tensors;
  for (auto& entry : fp8_.state_dict(model_.named_parameters())) {
    tensors.push_back(std::move(entry));
  }
  return tensors;
}

nlohmann::json Optimization::settings() const {
  return {{"optimizer", optimizer_->state_dict().groups}, {"loss_scaler", scaler_.state_dict()}};
}

void Optimization::load(const NamedTensors& tensors, const nlohmann::json& settings) {
  NamedTensors optimizer, fp8;
  for (const auto& [name, tensor] : tensors) {
    const bool is_fp8 = name.find(kFp8Key) != std::string::npos;
    (is_fp8 ? fp8 : optimizer).emplace_back(name, tensor);
  }
  ranks_.strategy().load_optimizer_state(*optimizer_, {optimizer, settings.at("optimizer")});
  fp8_.load_state_dict(fp8, model_.named_parameters());
  // Checkpoints from before losses were scaled have none.
  scaler_.load_state_dict(settings.value("loss_scaler", nlohmann::json::object()));
}

}  // namespace weft::train
