#include "optim/layerwise.h"

#include "autograd/ops.h"
#include "kernels/adam/adam.h"
#include "kernels/multi_tensor_norm/multi_tensor_norm.h"
#include "kernels/sgd/sgd.h"
#include "optim/capture.h"
#include "optim/registry.h"

namespace weft::optim {
namespace {

double norm_of(const Tensor& x) {
  WEFT_CHECK(!is_capturing(x.device()),
             "LARS, LAMB: the host reads the layers' norms, which a captured graph has not "
             "computed");
  const Tensor norm = Tensor::empty({}, DType::f64, x.device());
  kernels::multi_tensor_norm({.tensors = {x}, .norm = norm});
  return norm.item();
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
  const double decay = group["weight_decay"];
  for (size_t i = 0; i < batch.parameters.size(); ++i) {
    const Tensor &w = batch.parameters[i], &g = batch.gradients[i];
    double rate = 1;
    if (is_layer(w)) {
      const double weights = norm_of(w), gradients = gradient_scale * norm_of(g);
      if (weights > 0 && gradients > 0) {
        rate = group["trust_coefficient"] * weights / (gradients + decay * weights);
      }
    }
    kernels::sgd({.parameters = {w},
                  .gradients = {g},
                  .buffers = batch.state.empty() ? Tensors() : Tensors{batch.state[0][i]},
                  .lr = group["lr"],
                  .momentum = group["momentum"],
                  .weight_decay = rate * decay,
                  .first_step = batch.step == 1,
                  .gradient_scale = rate * gradient_scale});
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
    Tensor w = batch.parameters[i];
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
                   .gradient_scale = gradient_scale});
    ops::add_(step, detach(w), -group["weight_decay"]);
    double rate = 1;
    if (is_layer(w)) {
      const double weights = norm_of(w), update = norm_of(step);
      if (weights > 0 && update > 0) rate = group["trust_coefficient"] * weights / update;
    }
    ops::add_(w, step, group["lr"] * rate);
  }
}

std::unique_ptr<Optimizer> make_lamb(const ParameterGroups& groups) {
  return std::make_unique<Lamb>(groups);
}

}  // namespace weft::optim
