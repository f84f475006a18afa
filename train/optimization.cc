#include "train/optimization.h"

#include <algorithm>
#include <cmath>

#include "optim/deepspeed_schedule.h"
#include "train/fine_tuning.h"

namespace weft::train {

optim::Options optimizer_options(const Config& config) {
  optim::Options options = optim::optimizer_options(config.optimizer);
  for (const auto& [name, value] :
       {std::pair("lr", config.lr), std::pair("weight_decay", config.weight_decay),
        std::pair("momentum", config.momentum), std::pair("nesterov", config.nesterov ? 1.0 : 0.0),
        std::pair("beta1", config.betas[0]), std::pair("beta2", config.betas[1]),
        std::pair("eps", config.eps)}) {
    if (options.contains(name)) options[name] = value;
  }
  return options;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Config& config, nn::Module& model) {
  const nn::ModelStructure structure = model.structure();
  optim::ParameterGroups groups =
      optim::without_decay_of_vectors(trained_parameters(model), structure.embeddings);
  groups.back().lr_scale = config.vector_lr;
  if (config.layer_decay < 1) groups = with_layer_decay(groups, config.layer_decay, structure);
  // From the first step on, and what an optim::Scheduler multiplies.
  for (optim::ParameterGroup& group : groups) group.options["lr"] = config.lr * group.lr_scale;
  return optim::make_optimizer(config.optimizer, groups, optimizer_options(config));
}

optim::Schedule make_schedule(const Config& config, int64_t steps) {
  if (config.schedule == "one-cycle") {
    return optim::one_cycle(steps, {.warmup_fraction = config.warmup});
  }
  const auto warmup = static_cast<int64_t>(std::lround(config.warmup * static_cast<double>(steps)));
  if (optim::is_deepspeed_schedule(config.schedule)) {
    return optim::deepspeed_schedule(config.schedule,
                                     {.lr = config.lr, .steps = steps, .warmup = warmup});
  }
  const int64_t rising = std::max<int64_t>(0, std::min(steps - 1, warmup));
  const optim::Schedule rest =
      config.schedule == "cosine" ? optim::cosine(steps - rising) : optim::constant();
  if (rising == 0) return rest;
  return optim::sequential({optim::linear_warmup(rising, 1.0 / static_cast<double>(rising)), rest},
                           {rising});
}

}  // namespace weft::train
