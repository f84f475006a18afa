#include "train/optimization.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "optim/clip.h"
#include "optim/optimizer_state.h"
#include "optim/registry.h"
#include "train/fine_tuning.h"

namespace weft::train {
namespace {

/// What tells Fp8Scaling's tensors from the optimizer's, which they lie beside in a checkpoint.
constexpr const char* kFp8Key = ".fp8_";

}  // namespace

std::unique_ptr<optim::Optimizer> make_optimizer(const Config& config, nn::Module& model) {
  const nn::ModelStructure structure = model.structure();
  optim::ParameterGroups groups =
      optim::without_decay_of_vectors(trained_parameters(model), structure.embeddings);
  groups.back().lr_scale = config.vector_lr;
  if (config.layer_decay < 1) groups = with_layer_decay(groups, config.layer_decay, structure);
  optim::Options options = optim::optimizer_options(config.optimizer);
  for (const auto& [name, value] :
       {std::pair("lr", config.lr), std::pair("weight_decay", config.weight_decay),
        std::pair("momentum", config.momentum), std::pair("nesterov", config.nesterov ? 1.0 : 0.0),
        std::pair("beta1", config.betas[0]), std::pair("beta2", config.betas[1]),
        std::pair("eps", config.eps)}) {
    // Of the run's settings an optimizer takes those that it has.
    if (options.contains(name)) options[name] = value;
  }
  return optim::make_optimizer(config.optimizer, groups, options);
}

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

RunOptimizer::RunOptimizer(const Config& config, nn::Module& model, Ranks& ranks, int64_t steps)
    : config_(config),
      model_(model),
      ranks_(ranks),
      fabric_(ranks.fabric()),
      optimizer_(make_optimizer(config, model)),
      schedule_(make_schedule(config, steps)) {
  fabric_.setup(model, *optimizer_);
}

bool RunOptimizer::finish_gradients() {
  const double unscaled_norm = fabric_.unscale(*optimizer_);
  norm_.reset();
  if (scales_loss() && !ranks_.is_active()) {
    norm_ = unscaled_norm;
  } else if (config_.clip_norm > 0 || config_.nonfinite == "skip") {
    norm_ = ranks_.grad_norm(optimizer_->parameters());
  }
  return scales_loss() || std::isfinite(norm_.value_or(0));
}

void RunOptimizer::step(int64_t step) {
  const double clip =
      config_.clip_norm > 0 ? optim::clip_coefficient(norm_.value(), config_.clip_norm) : 1;
  optimizer_->set_lr(config_.lr * schedule_(step));
  last_scale_ = fabric_.scaler().get_scale();
  last_was_skipped_ = !fabric_.step(*optimizer_, clip);
}

void RunOptimizer::skip_step() {
  fabric_.skip_step();
  last_was_skipped_ = true;
}

NamedTensors RunOptimizer::tensors() {
  NamedTensors tensors = fabric_.strategy().optimizer_state(*optimizer_).tensors;
  for (auto& entry : fabric_.fp8().state_dict(model_.named_parameters())) {
    tensors.push_back(std::move(entry));
  }
  return tensors;
}

nlohmann::json RunOptimizer::settings() const {
  return {{"optimizer", optimizer_->state_dict().groups},
          {"loss_scaler", fabric_.scaler().state_dict()}};
}

void RunOptimizer::save_sharded(const io::Path& directory, const std::function<void()>& then) {
  NamedTensors fp8 = fabric_.fp8().state_dict(model_.named_parameters());
  fabric_.async_save(directory.string(),
                     {{"model", &model_}, {"optimizer", optimizer_.get()}, {"fp8", &fp8}}, then);
}

void RunOptimizer::load_sharded(const io::Path& directory, const nlohmann::json& settings) {
  NamedTensors fp8;
  fabric_.load(directory.string(),
               {{"model", &model_}, {"optimizer", optimizer_.get()}, {"fp8", &fp8}});
  fabric_.fp8().load_state_dict(fp8, model_.named_parameters());
  fabric_.scaler().load_state_dict(settings.at("loss_scaler"));
}

void RunOptimizer::load(const NamedTensors& tensors, const nlohmann::json& settings) {
  NamedTensors optimizer, fp8;
  for (const auto& [name, tensor] : tensors) {
    const bool is_fp8 = name.find(kFp8Key) != std::string::npos;
    (is_fp8 ? fp8 : optimizer).emplace_back(name, tensor);
  }
  fabric_.strategy().load_optimizer_state(*optimizer_, {optimizer, settings.at("optimizer")});
  fabric_.fp8().load_state_dict(fp8, model_.named_parameters());
  // Checkpoints from before losses were scaled have none.
  fabric_.scaler().load_state_dict(settings.value("loss_scaler", nlohmann::json::object()));
}

}  // namespace weft::train
