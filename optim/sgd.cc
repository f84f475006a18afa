#include "optim/sgd.h"

#include "kernels/sgd/sgd.h"
#include "optim/registry.h"

namespace weft::optim {

SGD::SGD(const ParameterGroups& groups, const SgdOptions& options)
    : Optimizer("SGD", {{"lr", options.lr},
                        {"momentum", options.momentum},
                        {"dampening", options.dampening},
                        {"weight_decay", options.weight_decay},
                        {"nesterov", options.nesterov ? 1 : 0}}) {
  add_groups(groups);
}

void SGD::check(const ParameterGroup& group) const {
  for (const char* option : {"lr", "momentum", "weight_decay"}) check_range(group, option, 0);
  WEFT_CHECK(group["nesterov"] == 0 || (group["momentum"] > 0 && group["dampening"] == 0),
             "SGD: nesterov needs a momentum and no dampening, got {} and {}", group["momentum"],
             group["dampening"]);
}

std::vector<std::string> SGD::state_names(const ParameterGroup& group) const {
  if (group["momentum"] == 0) return {};
  return {"momentum_buffer"};
}

void SGD::update(const ParameterGroup& group, const Batch& batch, double gradient_scale) {
  kernels::sgd({.parameters = batch.parameters,
                .gradients = batch.gradients,
                .buffers = batch.state.empty() ? Tensors() : batch.state[0],
                .lr = group["lr"],
                .momentum = group["momentum"],
                .dampening = group["dampening"],
                .weight_decay = group["weight_decay"],
                .nesterov = group["nesterov"] != 0,
                .first_step = batch.step == 1,
                .gradient_scale = gradient_scale,
                .gate = batch.gate,
                .narrow = batch.narrow});
}

std::unique_ptr<Optimizer> make_sgd(const ParameterGroups& groups) {
  return std::make_unique<SGD>(groups);
}

}  // namespace weft::optim
