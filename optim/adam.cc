#include "optim/adam.h"

#include "optim/registry.h"

namespace weft::optim {

Adam::Adam(std::string kind, bool decoupled, const ParameterGroups& groups, const Options& options)
    : Optimizer(std::move(kind), options), decoupled_(decoupled) {
  add_groups(groups);
}

void Adam::check(const ParameterGroup& group) const {
  for (const char* option : {"lr", "eps", "weight_decay"}) check_range(group, option, 0);
  for (const char* option : {"beta1", "beta2"}) check_range(group, option, 0, 1);
}

std::vector<std::string> Adam::state_names(const ParameterGroup&) const {
  return {"exp_avg", "exp_avg_sq"};
}

kernels::AdamProblem Adam::problem(const ParameterGroup& group, const Batch& batch,
                                   double gradient_scale) const {
  return {.parameters = batch.parameters,
          .gradients = batch.gradients,
          .m = batch.state[0],
          .v = batch.state[1],
          .step = batch.step,
          .lr = group["lr"],
          .beta1 = group["beta1"],
          .beta2 = group["beta2"],
          .eps = group["eps"],
          .weight_decay = group["weight_decay"],
          .decoupled = decoupled_,
          .gradient_scale = gradient_scale,
          .constants = batch.constants,
          .gate = batch.gate,
          .narrow = batch.narrow};
}

void Adam::update(const ParameterGroup& group, const Batch& batch, double gradient_scale) {
  kernels::adam(problem(group, batch, gradient_scale));
}

Tensor Adam::constants(const ParameterGroup& group, const Batch& batch,
                       double gradient_scale) const {
  return kernels::adam_constants(problem(group, batch, gradient_scale));
}

std::unique_ptr<Optimizer> make_adamw(const ParameterGroups& groups) {
  return std::make_unique<AdamW>(groups);
}
std::unique_ptr<Optimizer> make_adam(const ParameterGroups& groups) {
  return std::make_unique<Adam>(groups);
}

}  // namespace weft::optim
