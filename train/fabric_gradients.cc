// Backward passes, steps, and the gradients between them, which know the loss scale and the shards.
#include "train/fabric_gradients.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <unordered_map>
#include <utility>

#include "autograd/backward.h"
#include "autograd/fp8.h"
#include "autograd/ops.h"
#include "core/scoped_value.h"
#include "dist/comm/exact_sum.h"
#include "optim/clip.h"

namespace weft::train {
namespace {

bool has_gradient(const Tensors& parameters) {
  return std::ranges::any_of(parameters, [](const Tensor& p) { return p.grad().defined(); });
}

}  // namespace

Tensors Fabric::Gradients::complete(const Tensors& parameters) {
  fabric_.forget_the_dead();
  std::unordered_map<const void*, Optimizer*> optimizer_of;
  for (const auto& entry : fabric_.optimizers_) {
    for (const Tensor& p : entry->optimizer->parameters()) optimizer_of[p.id()] = entry.get();
  }
  Tensors mine;
  std::vector<Optimizer*> optimizers;
  std::vector<const Parameter*> untrained;  // by any of them
  bool some_wait = false, some_do_not = false;
  for (const Tensor& tensor : parameters) {
    const auto [model, parameter] = fabric_.find_parameter(tensor);
    WEFT_CHECK(parameter, "clipping: {} is of a model that is gone", tensor);
    const auto found = optimizer_of.find(parameter->kept.id());
    Optimizer* const optimizer = found == optimizer_of.end() ? nullptr : found->second;
    const bool waits = model->waits || (optimizer && Fabric::waits(*optimizer));
    (waits ? some_wait : some_do_not) = true;
    if (!waits) check_summed(*parameter, "clipping");
    mine.push_back(parameter->kept);
    if (optimizer) optimizers.push_back(optimizer);
    if (!optimizer) untrained.push_back(parameter);
  }
  WEFT_CHECK(!some_wait || !some_do_not,
             "clipping: some of the parameters wait for the last round of accumulate(), others do "
             "not; clip them apart");
  if (some_wait) return {};
  if (!fabric_.scaler_.is_enabled()) return mine;
  check_unscaled(untrained);
  for (Optimizer* const optimizer : optimizers) fabric_.unscale(*optimizer);
  return mine;
}

/// Throws Error, on all ranks, where the gradient of one of these, which no optimizer has, carries
/// the loss scale on any of them. One that no backward has reached may have a gradient of zeros,
/// which has no scale.
void Fabric::Gradients::check_unscaled(const std::vector<const Parameter*>& parameters) const {
  if (parameters.empty()) return;
  std::vector<int32_t> mine;
  for (const Parameter* const p : parameters) {
    mine.push_back(p->is_reached && p->kept.grad().defined());
  }
  const Tensor carries = Tensor::from(mine, {static_cast<int64_t>(mine.size())});
  fabric_.all_reduce(carries, dist::ReduceOp::kMax);
  for (size_t i = 0; i < parameters.size(); ++i) {
    WEFT_CHECK(carries.data<int32_t>()[i] == 0,
               "clipping: parameter \"{}\" is trained by no optimizer that was set up, which would "
               "divide its gradient by the loss scale",
               parameters[i]->name);
  }
}

Tensor Fabric::Gradients::norm(const Tensors& mine) {
  std::vector<std::pair<Model*, Tensors>> parts;
  for (const auto& model : fabric_.models_) {
    Tensors part;
    for (const Tensor& p : mine) {
      if (model->places.contains(p.id())) part.push_back(p);
    }
    if (!part.empty()) parts.emplace_back(model.get(), std::move(part));
  }
  if (parts.size() == 1) return parts[0].first->strategy->unread_norm(parts[0].second);
  dist::ExactSum squares;
  for (const auto& [model, part] : parts) squares.add(model->strategy->squares(part));
  return Tensor::scalar(std::sqrt(squares.value()), DType::f64);
}

void Fabric::Gradients::check_summed(const Parameter& parameter, const char* what) {
  WEFT_CHECK(!parameter.is_local,
             "fabric: {} before the gradients have been summed over the ranks: the last "
             "backward() of a step has to be outside of no_backward_sync()",
             what);
}

/// What a backward pass does to each parameter of a model. Where the loss has to be scaled,
/// averaged or divided, one of the program's own would leave gradients of another size without an
/// error.
void Fabric::watch_backward(Model& model) {
  const bool is_changed = data_size() > 1 || scaler_.is_enabled();
  if (!is_changed && options_.accumulate == 1) return;
  for (Parameter& parameter : model.parameters) {
    // One that is frozen may be trained later.
    const bool is_trained = parameter.whole.requires_grad();
    parameter.whole.set_requires_grad(true);
    // The Fabric, while it and the model are there.
    const auto watcher = [fabric = std::weak_ptr<Fabric*>(alive_), is_alive = model.is_alive] {
      const std::shared_ptr<Fabric*> self = fabric.lock();
      return self && !is_alive.expired() ? *self : nullptr;
    };
    register_hook(parameter.whole, [watcher, &model](const Tensor& gradient) -> Tensor {
      const Fabric* const self = watcher();
      if (!self || !self->divides_gradients_ || !model.is_in_round) return {};
      const NoGrad guard;
      return gradient * (1.0 / static_cast<double>(self->options_.accumulate));
    });
    register_ready_hook(parameter.whole, [watcher, is_changed, &model, &parameter] {
      const Fabric* const self = watcher();
      if (!self) return;
      WEFT_CHECK(self->is_in_backward_ || (!is_changed && !model.is_in_round),
                 "fabric: call fabric.backward(loss) instead of backward(loss): the loss of a "
                 "model that was set up is scaled, averaged over the ranks, or divided by the "
                 "rounds of accumulate()");
      parameter.is_touched = parameter.is_reached = true;
    });
    parameter.whole.set_requires_grad(is_trained);
  }
}

/// A pass that comes by an output sums, though it may reach no parameter on this rank.
void Fabric::watch_outputs(Model& model, const Tensors& outputs) const {
  if (data_size() == 1 || !grad_enabled()) return;
  for (const Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    register_hook(output, [fabric = std::weak_ptr<Fabric*>(alive_), is_alive = model.is_alive,
                           &model](const Tensor&) {
      if (!fabric.expired() && !is_alive.expired() && !in_grad()) model.is_passed = true;
      return Tensor();
    });
  }
}

/// Puts sums over the ranks aside: a further sum over them must not count these once per rank.
void Fabric::begin_pass(Model& model) {
  const NoGrad guard;
  const bool sums = data_size() > 1;
  model.is_passed = false;
  for (Parameter& p : model.parameters) {
    p.is_touched = false;
    if (!sums || p.is_local) continue;
    Tensor sum = p.whole.grad();
    if (!sum.defined()) continue;
    p.whole.set_grad({});
    // What is shared may be a part of a bucket, which the pass fills.
    p.sum_aside = sum.is_unique() ? std::move(sum) : ops::clone(sum);
  }
}

/// Notes what became of each gradient, and takes back the sums of those that are sums now. One that
/// is this rank's alone leaves its sum aside until it is summed, too.
void Fabric::end_pass(Model& model) {
  const NoGrad guard;
  const bool sums = data_size() > 1;
  const bool is_touched =
      model.is_passed || std::ranges::any_of(model.parameters, &Parameter::is_touched);
  for (Parameter& p : model.parameters) {
    if (!sums) continue;
    if (model.local_depth > 0) {
      p.is_local = p.is_local || p.is_touched;
    } else if (is_touched) {
      p.is_local = false;  // of the others, too: a pass that sums leaves none out
    }
    if (p.is_local || !p.sum_aside.defined()) continue;
    Tensor gradient = p.whole.grad();
    if (gradient.defined()) {
      ops::add_(gradient, p.sum_aside);
    } else {
      p.whole.set_grad(p.sum_aside);
    }
    p.sum_aside = {};
  }
}

/// Takes back the sums that were before a pass which has failed: what it has left in their place is
/// this rank's alone, and of some of the parameters. Gradients that were this rank's alone before
/// stay as they are, as all do where there are no other ranks.
void Fabric::abandon_pass(Model& model) const {
  if (data_size() == 1) return;
  for (Parameter& p : model.parameters) {
    if (!p.is_local) p.whole.set_grad(std::exchange(p.sum_aside, {}));
  }
}

void Fabric::run_backward(const std::function<void()>& pass) {
  forget_the_dead();
  for (const auto& entry : optimizers_) {
    if (!has_gradient(entry->optimizer->parameters())) entry->is_used_up = false;
    WEFT_CHECK(!entry->is_unscaled,
               "fabric: backward() after clipping and before step(): the gradients were divided by "
               "the loss scale already, and those to come would carry it");
  }
  for (const auto& model : models_) begin_pass(*model);
  try {
    const ScopedValue in_backward(is_in_backward_, true);
    pass();
  } catch (...) {
    for (const auto& model : models_) abandon_pass(*model);
    throw;
  }
  for (const auto& model : models_) end_pass(*model);
  for (const auto& entry : optimizers_) {
    if (is_in_round(*entry)) note_pass(*entry);
  }
}

/// Notes what a pass in a round of accumulate() was to the optimizer's step. Where it has summed,
/// that is a matter of all ranks: some may have reached no parameter that others have.
void Fabric::note_pass(Optimizer& entry) const {
  constexpr int32_t kAddingUp = 1, kTouched = 2;
  const std::vector<Parameter*> trained = trained_by(entry);
  std::vector<int32_t> mine;
  for (const Parameter* const p : trained) {
    mine.push_back(p->is_touched ? kTouched : p->is_adding_up ? kAddingUp : 0);
  }
  const Tensor all = Tensor::from(mine, {static_cast<int64_t>(mine.size())});
  const bool sums = std::ranges::none_of(
      entry.models, [](const Model* const model) { return model->local_depth > 0; });
  if (sums) all_reduce(all, dist::ReduceOp::kMax);
  const std::span<const int32_t> found(all.data<int32_t>(), mine.size());
  // Then the step has all that it waited for.
  const bool is_complete = !waits(entry) && std::ranges::find(found, kTouched) != found.end();
  if (is_complete) entry.is_drop_due = false;
  for (size_t i = 0; i < trained.size(); ++i) {
    trained[i]->is_adding_up = !is_complete && found[i] > 0;
  }
}

void Fabric::backward(const Tensor& loss) {
  forget_the_dead();
  const PrecisionScope scope = autocast();
  // Where all that are trained accumulate, the loss is divided, which costs nothing; else, in
  // watch_backward(), the gradients of those that do: one loss may be that of others, too.
  const bool all_accumulate =
      is_in_round_ && std::ranges::all_of(models_, [](const auto& model) {
        return model->is_in_round ||
               std::ranges::none_of(model->parameters,
                                    [](const Parameter& p) { return p.whole.requires_grad(); });
      });
  const ScopedValue divides(divides_gradients_, is_in_round_ && !all_accumulate);
  const double parts =
      data_size() * (all_accumulate ? static_cast<double>(options_.accumulate) : 1.0);
  run_backward([&] { weft::backward(scaler_.scale(parts == 1 ? loss : loss * (1.0 / parts))); });
}

std::shared_ptr<void> Fabric::no_backward_sync(nn::Module& model, bool enabled) {
  Model& entry = find_model(model, "no_backward_sync");
  if (!enabled) return nullptr;
  ++entry.local_depth;
  const std::shared_ptr<void> local = entry.strategy->no_sync();
  return {nullptr, [local, &entry, is_alive = entry.is_alive,
                    fabric = std::weak_ptr<Fabric*>(alive_)](void*) {
            if (!fabric.expired() && !is_alive.expired()) --entry.local_depth;
          }};
}

std::shared_ptr<void> Fabric::accumulate(const std::vector<nn::Module*>& models) {
  WEFT_CHECK(!models.empty(), "fabric: accumulate() of no model; expected one or several");
  WEFT_CHECK(!is_in_round_,
             "fabric: accumulate() inside of accumulate(); one call takes several models");
  std::vector<Model*> entries;
  for (nn::Module* const model : models) {
    WEFT_CHECK(model, "fabric: accumulate(): a model is null");
    Model& entry = find_model(*model, "accumulate");
    WEFT_CHECK(entries.empty() || entry.rounds == entries[0]->rounds,
               "fabric: accumulate() of several models, of whose steps one has had {} rounds and "
               "another {}; expected models that are always in one accumulate()",
               entries[0]->rounds, entry.rounds);
    entries.push_back(&entry);
  }
  const int64_t round = entries[0]->rounds + 1;
  const bool is_last = round == options_.accumulate || watch_->latest().is_last;
  is_in_round_ = true;
  is_accumulating_ = !is_last;
  std::vector<std::shared_ptr<void>> local;
  for (Model* const entry : entries) {
    entry->rounds = is_last ? 0 : round;
    entry->is_in_round = true;
    entry->waits = !is_last;
    local.push_back(no_backward_sync(*entry->module, !is_last));
  }
  for (const auto& optimizer : optimizers_) {
    if (round > 1 || !is_in_round(*optimizer)) continue;
    // What no step has used of the step before is as any gradient.
    for (Parameter* const p : trained_by(*optimizer)) p->is_adding_up = false;
  }
  return {nullptr, [local, this, fabric = std::weak_ptr<Fabric*>(alive_)](void*) {
            if (!fabric.expired()) end_round();
          }};
}

/// A zero_grad() that has kept what the last round found, and behind which neither a backward() nor
/// a step() came, was to leave the step out. Throws nothing: a loss scale that waited for the step
/// moves in the next call.
void Fabric::end_round() {
  is_in_round_ = is_accumulating_ = false;
  for (const auto& model : models_) model->is_in_round = model->waits = false;
  for (const auto& entry : optimizers_) {
    if (!entry->is_drop_due || entry->is_alive.expired()) continue;
    for (Model* const model : entry->models) drop_gradients(*model, trained_by(*entry, *model));
    settle(*entry);
  }
}

// Steps.

bool Fabric::is_in_round(const Optimizer& entry) {
  return std::ranges::any_of(entry.models, &Model::is_in_round);
}

bool Fabric::waits(const Optimizer& entry) {
  return std::ranges::any_of(entry.models, &Model::waits);
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

double Fabric::clip_gradients(optim::Optimizer& optimizer, double max_norm,
                              bool error_if_nonfinite) {
  find_optimizer(optimizer, "clip_gradients");
  return optim::clip_grad_norm(optimizer.parameters(), max_norm, error_if_nonfinite);
}

bool Fabric::step(optim::Optimizer& optimizer, double gradient_scale,
                  const kernels::StepGate& gate) {
  find_optimizer(optimizer, "step");
  return optimizer.step(gradient_scale, gate);
}

bool Fabric::take_step(Optimizer& entry, double gradient_scale, const kernels::StepGate& gate) {
  forget_the_dead();
  if (waits(entry)) return false;
  for (const Parameter* const p : trained_by(entry)) Gradients::check_summed(*p, "step()");
  poll_save();  // before anything changes: it may throw
  for (Model* const model : entry.models) model->strategy->keep_changes();
  unscale(entry);
  const bool is_taken =
      low_bits_
          ? low_bits_->step(*entry.optimizer, gate,
                            [&](double coefficient) {
                              return scaler_.step(*entry.optimizer, gradient_scale * coefficient);
                            })
          : scaler_.step(*entry.optimizer, gradient_scale, gate);
  entry.is_unscaled = entry.is_drop_due = false;
  entry.is_used_up = true;
  for (Parameter* const p : trained_by(entry)) p->is_adding_up = false;
  for (Model* const model : entry.models) model->strategy->after_step();
  update_scale();
  if (precision_.is_fp8()) {
    reduce_amax();
    fp8_.update();
  }
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
  const auto follow = [&](Tensor gradient) {
    if (!gradient.defined()) return;
    ops::mul_(gradient, ops::full({}, factor, gradient.dtype(), gradient.device()));
  };
  for (const auto& entry : optimizers_) {
    if (entry->is_used_up) continue;
    for (Model* const model : entry->models) {
      Tensors whole;
      for (const Parameter* p : trained_by(*entry, *model)) {
        follow(p->kept.grad());
        follow(p->sum_aside);
        whole.push_back(p->whole);
      }
      model->strategy->scale_local_gradients(whole, factor);
    }
  }
}

void Fabric::skip_step() {
  Model& model = only_model("skip_step");
  poll_save();
  for (const auto& entry : optimizers_) {
    if (entry->is_unscaled) scaler_.forget(entry->optimizer);
    entry->is_unscaled = false;
    entry->is_used_up = true;
  }
  model.strategy->after_step();
}

void Fabric::drop_gradients(Optimizer& entry) {
  const bool keeps = is_in_round(entry);
  bool has_kept = false;
  for (Model* const model : entry.models) {
    std::vector<Parameter*> dropped = trained_by(entry, *model);
    // What has added up belongs to the step to come.
    const auto count =
        std::erase_if(dropped, [&](const Parameter* p) { return keeps && p->is_adding_up; });
    has_kept = has_kept || count > 0;
    drop_gradients(*model, dropped);
  }
  if (!has_kept) settle(entry);
  // Not only where this rank has kept some: others may have.
  entry.is_drop_due = keeps && !waits(entry);
  forget_the_dead();
}

/// The optimizer's gradients are gone. The loss scale that may have waited for them is the
/// caller's to move, by forget_the_dead().
void Fabric::settle(Optimizer& entry) {
  if (entry.is_unscaled) scaler_.forget(entry.optimizer);
  entry.is_unscaled = entry.is_used_up = entry.is_drop_due = false;
}

/// Wherever they are.
void Fabric::drop_gradients(Model& model, const std::vector<Parameter*>& parameters) {
  Tensors whole;
  for (Parameter* const p : parameters) {
    if (p->kept.grad().defined()) p->kept.set_grad({});
    p->is_local = p->is_reached = p->is_adding_up = false;
    p->sum_aside = {};
    whole.push_back(p->whole);
  }
  model.strategy->drop_local_gradients(whole);
}

/// Those of a part of the model; the optimizer's others are as they were.
void Fabric::drop_gradients(Model& model, const nn::Module& part) {
  std::vector<Parameter*> mine;
  for (const Tensor& tensor : part.parameters()) {
    const auto place = model.places.find(tensor.id());
    if (place != model.places.end()) mine.push_back(&model.parameters[place->second]);
  }
  drop_gradients(model, mine);
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
  std::vector<Parameter*> all;
  for (Parameter& p : model.parameters) all.push_back(&p);
  drop_gradients(model, all);
  forget_the_dead();
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
