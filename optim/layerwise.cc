#include "optim/layerwise.h"

#include "autograd/ops.h"
#include "core/view.h"
#include "kernels/adam/adam.h"
#include "kernels/multi_tensor_norm/multi_tensor_norm.h"
#include "kernels/sgd/sgd.h"
#include "optim/capture.h"
#include "optim/registry.h"

namespace weft::optim {
namespace {

/// f64 [2, n]: the norms of n tensors and of n others. They stay on the device: nobody waits.
Tensor norms_of(const Tensors& tensors, const Tensors& others) {
  const Tensor norms = Tensor::empty({2, std::ssize(tensors)}, DType::f64, tensors[0].device());
  kernels::multi_tensor_norm({.tensors = tensors, .norm = view::select(norms, 0, 0)});
  kernels::multi_tensor_norm({.tensors = others, .norm = view::select(norms, 0, 1)});
  return norms;
}

bool is_layer(const Tensor& parameter) { return parameter.dim() > 1; }

}  // namespace

Lars::Lars(const ParameterGroups& groups, const LarsOptions& options)
    : Optimizer("LARS", {{"lr", options.lr},
                         {"momentum", options.momentum},
                         {"weight_decay", options.weight_decay},
                         {"trust_coefficient", options.trust_coefficient}}) {
  add_groups(groups);
}

void Lars::check(const ParameterGroup& group) const {
  for (const char* option : {"lr", "momentum", "weight_decay", "trust_coefficient"}) {
    check_range(group, option, 0);
  }
}

std::vector<std::string> Lars::state_names(const ParameterGroup& group) const {
  if (group["momentum"] == 0) return {};
  return {"momentum_buffer"};
}

void Lars::update(const ParameterGroup& group, const Batch& batch, double gradient_scale) {
  for (const bool of_layers : {true, false}) {
    kernels::SgdProblem problem{.lr = group["lr"],
                                .momentum = group["momentum"],
                                .weight_decay = group["weight_decay"],
                                .first_step = batch.step == 1,
                                .gradient_scale = gradient_scale,
                                .gate = batch.gate,
                                .trust_coefficient = group["trust_coefficient"]};
    for (size_t i = 0; i < batch.parameters.size(); ++i) {
      if (is_layer(batch.parameters[i]) != of_layers) continue;
      problem.parameters.push_back(batch.parameters[i]);
      problem.gradients.push_back(batch.gradients[i]);
      problem.narrow.push_back(batch.narrow_of(i)[0]);
      if (!batch.state.empty()) problem.buffers.push_back(batch.state[0][i]);
    }
    if (problem.parameters.empty()) continue;
    if (of_layers) problem.layer_norms = norms_of(problem.parameters, problem.gradients);
    kernels::sgd(problem);
  }
}

std::unique_ptr<Optimizer> make_lars(const ParameterGroups& groups) {
  return std::make_unique<Lars>(groups);
}

Lamb::Lamb(const ParameterGroups& groups, const LambOptions& options)
    : Optimizer("LAMB", {{"lr", options.lr},
                         {"beta1", options.beta1},
                         {"beta2", options.beta2},
                         {"eps", options.eps},
                         {"weight_decay", options.weight_decay},
                         {"trust_coefficient", options.trust_coefficient}}) {
  add_groups(groups);
}

void Lamb::check(const ParameterGroup& group) const {
  for (const char* option : {"lr", "eps", "weight_decay", "trust_coefficient"}) {
    check_range(group, option, 0);
  }
  for (const char* option : {"beta1", "beta2"}) check_range(group, option, 0, 1);
}

std::vector<std::string> Lamb::state_names(const ParameterGroup&) const {
  return {"exp_avg", "exp_avg_sq"};
}

void Lamb::update(const ParameterGroup& group, const Batch& batch, double gradient_scale) {
  const NoGrad guard;
  for (size_t i = 0; i < batch.parameters.size(); ++i) {
    const Tensor& w = batch.parameters[i];
    WEFT_CHECK(!is_capturing(w.device()),
               "LAMB: a captured step would repeat the bias corrections of step {}", batch.step);
    // Adam's step of rate 1 from 0, less the decay: -u.
    Tensor step = ops::zeros_like(w);
    kernels::adam({.parameters = {step},
                   .gradients = {batch.gradients[i]},
                   .m = {batch.state[0][i]},
                   .v = {batch.state[1][i]},
                   .step = batch.step,
                   .lr = 1,
                   .beta1 = group["beta1"],
                   .beta2 = group["beta2"],
                   .eps = group["eps"],
                   .gradient_scale = gradient_scale,
                   .gate = batch.gate});
    ops::add_(step, detach(w), -group["weight_decay"]);
    // The gradients have been clipped.
    kernels::sgd({.parameters = {w},
                  .gradients = {step},
                  .lr = -group["lr"],
                  .gate = batch.gate.unclipped(),
                  .layer_norms = is_layer(w) ? norms_of({w}, {step}) : Tensor(),
                  .trust_coefficient = group["trust_coefficient"],
                  .narrow = batch.narrow_of(i)});
  }
}

std::unique_ptr<Optimizer> make_lamb(const ParameterGroups& groups) {
  return std::make_unique<Lamb>(groups);
}

}  // namespace weft::optim
