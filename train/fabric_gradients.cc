// Backward passes, steps, and the gradients between them, which know the loss scale and the shards.
#include "train/fabric_gradients.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "autograd/backward.h"
#include "autograd/fp8.h"
#include "autograd/ops.h"
#include "core/scoped_value.h"
#include "dist/comm/tree_accumulator.h"
#include "optim/clip.h"

namespace weft::train {
namespace {

bool has_gradient(const Tensors& parameters) {
  return std::ranges::any_of(parameters, [](const Tensor& p) { return p.grad().defined(); });
}

void drop_gradients_of(const Tensors& parameters) {
  for (const Tensor& p : parameters) {
    if (p.grad().defined()) p.set_grad({});
  }
}

}  // namespace

Tensors Fabric::Gradients::complete(const Tensors& parameters) {
  fabric_.forget_the_dead();
  Tensors mine;
  for (const Tensor& parameter : parameters) mine.push_back(kept(parameter));
  for (const auto& model : fabric_.models_) {
    const bool is_concerned = std::ranges::any_of(
        parameters, [&](const Tensor& p) { return model->kept.contains(p.id()); });
    if (!is_concerned) continue;
    if (fabric_.is_accumulating_ && model.get() == fabric_.in_round_) return {};
    check_summed(*model, "clipping");
  }
  std::unordered_map<const void*, Optimizer*> optimizer_of;
  for (const auto& entry : fabric_.optimizers_) {
    for (const Tensor& p : entry->optimizer->parameters()) optimizer_of[p.id()] = entry.get();
  }
  for (const Tensor& p : mine) {
    if (!fabric_.scaler_.is_enabled()) break;
    const auto found = optimizer_of.find(p.id());
    WEFT_CHECK(found != optimizer_of.end() || !p.grad().defined(),
               "clipping: {} is trained by no optimizer that was set up, which would divide its "
               "gradient by the loss scale",
               p);
    if (found != optimizer_of.end()) fabric_.unscale(*found->second);
  }
  return mine;
}

Tensor Fabric::Gradients::norm(const Tensors& mine) {
  std::vector<std::pair<Model*, Tensors>> parts;
  for (const auto& model : fabric_.models_) {
    Tensors part;
    for (const Tensor& p : mine) {
      if (model->kept.contains(p.id())) part.push_back(p);
    }
    if (!part.empty()) parts.emplace_back(model.get(), std::move(part));
  }
  if (parts.size() == 1) return parts[0].first->strategy->unread_norm(parts[0].second);
  dist::ExactSum squares;
  for (const auto& [model, part] : parts) squares.add(model->strategy->squares(part));
  return Tensor::scalar(std::sqrt(squares.value()), DType::f64);
}

void Fabric::Gradients::check_summed(const Model& model, const char* what) {
  WEFT_CHECK(!model.has_local,
             "fabric: {} before the gradients have been summed over the ranks: the last "
             "backward() of a step has to be outside of no_backward_sync()",
             what);
}

Tensor Fabric::Gradients::kept(const Tensor& parameter) const {
  for (const auto& model : fabric_.models_) {
    const auto found = model->kept.find(parameter.id());
    if (found != model->kept.end()) return found->second;
  }
  WEFT_FAIL("clipping: {} is of a model that is gone", parameter);
}

/// Where the loss has to be scaled or averaged, a backward pass of the program's own would leave
/// gradients of another size without an error.
void Fabric::watch_backward(Model& model) {
  const bool averages = data_size() > 1;
  if (!averages && !scaler_.is_enabled()) return;
  for (const Tensor& parameter : model.parameters) {
    if (!parameter.requires_grad()) continue;
    register_ready_hook(
        parameter, [fabric = std::weak_ptr<Fabric*>(alive_), is_alive = model.is_alive, &model] {
          const std::shared_ptr<Fabric*> self = fabric.lock();
          if (!self || is_alive.expired()) return;
          WEFT_CHECK((*self)->is_in_backward_,
                     "fabric: call fabric.backward(loss) instead of backward(loss): the loss of a "
                     "model that was set up is scaled, or averaged over the ranks");
          model.was_touched = true;
        });
  }
}

/// Sums over the ranks that a further sum over them must not count once per rank.
void Fabric::put_sums_aside(Model& model) {
  model.was_touched = false;
  if (data_size() == 1 || !model.has_sums || !has_gradient(model.parameters)) return;
  const NoGrad guard;
  Tensors sums = dist::take_gradients(model.parameters);
  for (Tensor& sum : sums) {
    if (sum.defined()) sum = ops::clone(sum);  // it may be a part of a bucket
  }
  model.sums_aside = std::move(sums);
  model.has_sums = false;
}

void Fabric::take_sums_back(Model& model) {
  if (model.was_touched) model.has_local = model.local_depth > 0;
  if (model.has_local) return;
  const NoGrad guard;
  for (size_t i = 0; i < model.sums_aside.size(); ++i) {
    const Tensor& sum = model.sums_aside[i];
    const Tensor& parameter = model.parameters[i];
    if (!sum.defined()) continue;
    Tensor gradient = parameter.grad();
    if (gradient.defined()) {
      ops::add_(gradient, sum);
    } else {
      parameter.set_grad(sum);
    }
  }
  model.sums_aside.clear();
  model.has_sums = true;
}

void Fabric::run_backward(const std::function<void()>& pass) {
  forget_the_dead();
  for (const auto& entry : optimizers_) {
    if (!has_gradient(entry->optimizer->parameters())) entry->is_used_up = false;
    WEFT_CHECK(!entry->is_unscaled,
               "fabric: backward() after clipping and before step(): the gradients were divided by "
               "the loss scale already, and those to come would carry it");
  }
  for (const auto& model : models_) put_sums_aside(*model);
  {
    const ScopedValue in_backward(is_in_backward_, true);
    pass();
  }
  for (const auto& model : models_) take_sums_back(*model);
}

void Fabric::backward(const Tensor& loss) {
  const PrecisionScope scope = autocast();
  const double parts =
      data_size() * (is_in_round_ ? static_cast<double>(options_.accumulate) : 1.0);
  const Tensor share = scaler_.scale(parts == 1 ? loss : loss * (1.0 / parts));
  run_backward([&] { weft::backward(share); });
  if (!is_in_round_) return;
  for (const auto& entry : optimizers_) {
    for (const Model* model : entry->models) entry->is_adding_up |= model == in_round_;
  }
}

std::shared_ptr<void> Fabric::no_backward_sync(nn::Module& model, bool enabled) {
  Model& entry = find_model(model, "no_backward_sync");
  if (!enabled) return nullptr;
  ++entry.local_depth;
  const std::shared_ptr<void> local = entry.strategy->no_sync();
  return {nullptr, [local, &entry, is_alive = entry.is_alive](void*) {
            if (!is_alive.expired()) --entry.local_depth;
          }};
}

std::shared_ptr<void> Fabric::accumulate(nn::Module& model) {
  Model& entry = find_model(model, "accumulate");
  WEFT_CHECK(!is_in_round_, "fabric: accumulate() inside of accumulate()");
  ++entry.rounds;
  const bool is_last = entry.rounds == options_.accumulate || watch_->is_last;
  if (is_last) entry.rounds = 0;
  is_in_round_ = true;
  is_accumulating_ = !is_last;
  in_round_ = &entry;
  const std::shared_ptr<void> local = no_backward_sync(model, !is_last);
  return {nullptr, [local, this, fabric = std::weak_ptr<Fabric*>(alive_)](void*) {
            if (!fabric.expired()) is_in_round_ = is_accumulating_ = false;
          }};
}

// Steps.

bool Fabric::waits(const Optimizer& entry) const {
  return is_accumulating_ && std::ranges::find(entry.models, in_round_) != entry.models.end();
}

double Fabric::unscale(optim::Optimizer& optimizer) {
  const Tensor norm = unread_unscale(optimizer);
  return norm.defined() ? norm.item() : 0;
}

Tensor Fabric::unread_unscale(optim::Optimizer& optimizer) {
  return unscale(find_optimizer(optimizer, "unscale"));
}

Tensor Fabric::unscale(Optimizer& entry) {
  if (!scaler_.is_enabled() || entry.is_unscaled) return {};
  WEFT_CHECK(!entry.is_used_up,
             "fabric: zero_grad() was not called since the last step(); with a loss scale, which "
             "changes, gradients cannot add up over steps");
  const Tensor norm = scaler_.unread_unscale(*entry.optimizer);
  entry.is_unscaled = true;
  if (!world_ && norm.defined()) return norm;
  // Of all ranks, before any of them skips a step.
  const Tensor found = Tensor::scalar(scaler_.found_inf(*entry.optimizer), DType::f32);
  all_reduce(found, dist::ReduceOp::kMax);
  scaler_.set_found_inf(*entry.optimizer, found.item() != 0);
  return norm;
}

double Fabric::clip_gradients(optim::Optimizer& optimizer, double max_norm) {
  find_optimizer(optimizer, "clip_gradients");
  return optim::clip_grad_norm(optimizer.parameters(), max_norm);
}

bool Fabric::step(optim::Optimizer& optimizer, double gradient_scale,
                  const kernels::StepGate& gate) {
  find_optimizer(optimizer, "step");
  return optimizer.step(gradient_scale, gate);
}

bool Fabric::take_step(Optimizer& entry, double gradient_scale, const kernels::StepGate& gate) {
  forget_the_dead();
  if (waits(entry)) return false;
  for (const Model* model : entry.models) Gradients::check_summed(*model, "step()");
  unscale(entry);
  const bool is_taken =
      low_bits_
          ? low_bits_->step(*entry.optimizer, gate,
                            [&](double coefficient) {
                              return scaler_.step(*entry.optimizer, gradient_scale * coefficient);
                            })
          : scaler_.step(*entry.optimizer, gradient_scale, gate);
  entry.is_unscaled = false;
  entry.is_used_up = true;
  entry.is_adding_up = false;
  for (const Model* model : entry.models) model->strategy->after_step();
  update_scale();
  if (precision_.is_fp8()) {
    reduce_amax();
    fp8_.update();
  }
  poll_save();
  return is_taken;
}

/// Not while another optimizer's gradients have been unscaled and not used: update() would forget
/// that. Those of others that were not unscaled follow the scale.
void Fabric::update_scale() {
  if (!scaler_.is_enabled()) return;
  is_update_due_ =
      std::ranges::any_of(optimizers_, [](const auto& entry) { return entry->is_unscaled; });
  if (is_update_due_) return;
  const double before = scaler_.get_scale();
  if (options_.numerics.loss_scale_is_fixed) {
    scaler_.update(before);
  } else {
    scaler_.update();
  }
  const double factor = scaler_.get_scale() / before;
  if (factor == 1) return;
  const NoGrad guard;
  for (const auto& entry : optimizers_) {
    if (entry->is_used_up) continue;
    for (const Tensor& p : entry->optimizer->parameters()) {
      Tensor gradient = p.grad();
      if (!gradient.defined()) continue;
      ops::mul_(gradient, ops::full({}, factor, gradient.dtype(), gradient.device()));
    }
  }
}

void Fabric::skip_step() {
  Model& model = only_model("skip_step");
  for (const auto& entry : optimizers_) {
    if (entry->is_unscaled) scaler_.forget(*entry->optimizer);
    entry->is_unscaled = false;
    entry->is_used_up = true;
  }
  model.strategy->after_step();
  poll_save();
}

void Fabric::drop_gradients(Optimizer& entry) {
  // What has added up belongs to the step to come.
  if (is_in_round_ && entry.is_adding_up) return;
  const Tensors parameters = entry.optimizer->parameters();
  drop_gradients_of(parameters);
  settle(entry);
  std::unordered_set<const void*> mine;
  for (const Tensor& p : parameters) mine.insert(p.id());
  for (Model* model : entry.models) drop_rest(*model, mine);
}

/// The optimizer's gradients are gone.
void Fabric::settle(Optimizer& entry) {
  if (entry.is_unscaled) scaler_.forget(*entry.optimizer);
  entry.is_unscaled = entry.is_used_up = entry.is_adding_up = false;
  if (is_update_due_) update_scale();
}

/// All gradients of the model that .grad() does not show.
void Fabric::drop_rest(Model& model) {
  model.strategy->drop_local_gradients();
  model.has_local = model.has_sums = false;
  model.sums_aside.clear();
}

/// The same of some of what this rank has of the parameters; what only drops together, where they
/// are all that are trained.
void Fabric::drop_rest(Model& model, const std::unordered_set<const void*>& parameters) {
  bool has_all = true;
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    const Tensor& p = model.parameters[i];
    const bool is_one = parameters.contains(model.kept.at(p.id()).id());
    if (is_one && !model.sums_aside.empty()) model.sums_aside[i] = {};
    has_all = has_all && (is_one || !p.requires_grad());
  }
  if (has_all) drop_rest(model);
}

/// Those of a part of the model; the optimizer's others are as they were.
void Fabric::drop_gradients(Model& model, const nn::Module& part) {
  std::unordered_set<const void*> mine;
  for (const Tensor& p : part.parameters()) {
    const auto kept = model.kept.find(p.id());
    if (kept == model.kept.end()) continue;
    mine.insert(kept->second.id());
    if (kept->second.grad().defined()) kept->second.set_grad({});
  }
  drop_rest(model, mine);
}

void Fabric::drop_gradients(Model& model) {
  for (const auto& entry : optimizers_) {
    const bool trains_others = entry->models != std::vector<Model*>{&model};
    WEFT_CHECK(!trains_others || std::ranges::find(entry->models, &model) == entry->models.end() ||
                   !scaler_.is_enabled(),
               "fabric: model.zero_grad() of one of several models of an optimizer, with a loss "
               "scale; call the optimizer's");
    if (!trains_others) settle(*entry);
  }
  for (const auto& [id, tensor] : model.kept) {
    if (tensor.grad().defined()) tensor.set_grad({});
  }
  drop_rest(model);
}

/// Delayed scales follow the largest magnitude that any rank has met.
void Fabric::reduce_amax() {
  if (fp8_.options().scaling != Fp8Options::Scaling::kDelayed) return;
  NamedTensors parameters;
  for (const auto& model : models_) {
    if (model->is_alive.expired()) continue;
    for (auto& named : model->module->named_parameters()) parameters.push_back(std::move(named));
  }
  const Tensor amax = fp8_.step_amax(parameters);
  all_reduce(amax, dist::ReduceOp::kMax);
  fp8_.set_step_amax(amax, parameters);
}

}  // namespace weft::train
