// What a Fabric sets up, and how a program's own calls of it are led to the precision and the
// strategy.
#include <algorithm>
#include <tuple>
#include <utility>

#include "autograd/autocast.h"
#include "autograd/fp8.h"
#include "autograd/ops.h"
#include "core/scoped_value.h"
#include "dist/strategy/strategy_kind.h"
#include "kernels/gemm/matmul_numerics.h"
#include "train/fabric_gradients.h"

namespace weft::train {
namespace {

/// The Fabric that set something up; throws Error when it is gone.
template <class Fabric>
Fabric& alive(const std::weak_ptr<Fabric*>& fabric, const char* what) {
  const std::shared_ptr<Fabric*> pointer = fabric.lock();
  WEFT_CHECK(pointer, "{}: the Fabric that set it up is gone", what);
  return **pointer;
}

/// The models whose calls a Fabric leads in this thread, the innermost first: a RoutedCall of parts
/// alone does not say whose they are.
struct Led {
  const nn::Module* model;
  const Led* outer;
};
thread_local const Led* innermost = nullptr;

/// While it lives, a call of the model is led.
class LedCall {
 public:
  explicit LedCall(const nn::Module& model) : led_{&model, innermost}, scope_(innermost, &led_) {}

 private:
  const Led led_;
  const ScopedValue<const Led*> scope_;
};

/// Whether the call at hand, or one that it was made in, is of that model.
bool is_in_call_of(const nn::Module& model) {
  const Led* led = innermost;
  while (led && led->model != &model) led = led->outer;
  return led != nullptr;
}

}  // namespace

Fabric::Model& Fabric::only_model(std::string_view function) {
  forget_the_dead();
  WEFT_CHECK(!models_.empty(), "fabric: call setup() before {}()", function);
  WEFT_CHECK(
      models_.size() == 1,
      "fabric: {}() is for one model, {} were set up; call the model itself, or name what is "
      "meant",
      function, models_.size());
  return *models_.front();
}

Fabric::Model& Fabric::find_model(nn::Module& model, std::string_view function) {
  forget_the_dead();
  const auto found =
      std::ranges::find_if(models_, [&](const auto& entry) { return entry->module == &model; });
  WEFT_CHECK(found != models_.end(), "fabric: {}() of a model that was not set up", function);
  return **found;
}

Fabric::Optimizer& Fabric::find_optimizer(const optim::Optimizer& optimizer,
                                          std::string_view function) {
  forget_the_dead();
  const auto found = std::ranges::find_if(
      optimizers_, [&](const auto& entry) { return entry->optimizer == &optimizer; });
  WEFT_CHECK(found != optimizers_.end(), "fabric: {}() of an optimizer that was not set up",
             function);
  return **found;
}

/// Models and optimizers may go before the Fabric.
void Fabric::forget_the_dead() {
  const auto is_dead = [](const auto& entry) { return entry->is_alive.expired(); };
  std::erase_if(optimizers_, is_dead);
  std::erase_if(models_, [&](const auto& model) {
    // An optimizer's list of models must not dangle.
    return is_dead(model) && std::ranges::none_of(optimizers_, [&](const auto& optimizer) {
             return std::ranges::count(optimizer->models, model.get()) > 0;
           });
  });
}

void Fabric::setup_model(nn::Module& model, const nn::ModelStructure& structure) {
  WEFT_CHECK(geometry_, "fabric: call launch() before setup()");
  WEFT_CHECK(!model.has_route(), "fabric: the model was set up already");
  forget_the_dead();
  if (precision_.parameters != DType::f32) model.to(precision_.parameters);
  model.to(device_);
  auto entry = std::make_unique<Model>();
  entry->module = &model;
  entry->strategy = !std::exchange(is_geometry_used_, true) ? geometry_ : make_strategy();
  // Tensors are known by their handles, which wrap() leaves as they are.
  const NamedTensors whole = model.named_parameters();
  entry->strategy->wrap(model, structure);
  if (low_bits_) low_bits_->take(model);
  const optim::ParameterGroups kept = entry->strategy->groups(optim::ParameterGroups(whole));
  Tensors all;
  for (size_t i = 0; i < whole.size(); ++i) {
    const Tensor& mine = kept[0].parameters[i].second;
    entry->parameters.push_back(whole[i].second);
    for (const Tensor& tensor : {whole[i].second, mine}) {
      if (entry->kept.try_emplace(tensor.id(), mine).second) all.push_back(tensor);
    }
  }
  entry->ownership = optim::own_gradients(all, gradients_);
  const auto token = std::make_shared<int>();
  entry->is_alive = token;
  watch_backward(*entry);
  const std::weak_ptr<Fabric*> fabric = alive_;
  model.set_route(
      {.forward =
           [token, fabric, &model](const Tensor& x) {
             Fabric& self = alive(fabric, "model");
             WEFT_CHECK(!self.options_.strategy.parallel_head || !model.is_training(),
                        "fabric: with a parallel head a rank has the logits of some classes "
                        "alone; call fabric.forward() and fabric.cross_entropy()");
             return self.forward(model, x);
           },
       .zero_grad = [fabric,
                     entry = entry.get()] { alive(fabric, "zero_grad").drop_gradients(*entry); },
       .load_state_dict = [fabric, entry = entry.get()](
                              const NamedTensors& state,
                              const nn::LoadOptions& how) -> std::optional<nn::LoadResult> {
         const Fabric& self = alive(fabric, "load_state_dict");
         const bool is_whole = !self.world_ && entry->strategy->keeps_whole_state();
         if (entry->is_loading || is_whole) return {};
         WEFT_CHECK(how.strict,
                    "load_state_dict: expected strict = true of a model that was set up on {} "
                    "ranks; load what is not all of it before setup()",
                    self.size());
         load_state(*entry, state);
         return nn::LoadResult{};
       },
       .state_dict = [fabric, entry = entry.get()]() -> std::optional<NamedTensors> {
         if (entry->strategy->keeps_whole_state()) return {};
         return alive(fabric, "state_dict").state_everywhere(*entry);
       }});
  for (const auto& [name, part] : model.named_modules()) {
    // Some were set up on their own.
    if (part == &model) continue;
    entry->parts.insert(part);
    if (!part->has_route()) lead_part(*entry, name, *part);
  }
  models_.push_back(std::move(entry));
}

/// What becomes of a program's calls of a part of a model.
void Fabric::lead_part(Model& model, const std::string& name, nn::Module& part) {
  // Null: the part has outlived its model, and is a module like any other.
  const auto leader = [fabric = std::weak_ptr<Fabric*>(alive_), is_alive = model.is_alive,
                       name]() -> Fabric* {
    return is_alive.expired() ? nullptr : &alive(fabric, name.c_str());
  };
  nn::Module::Route route;
  // What has no tensors follows its input, wherever it is called.
  if (!part.unrouted_state().empty()) {
    route.refuse = [leader, name, &part] {
      if (Fabric* const self = leader()) self->check_call(name, part);
    };
  }
  route.zero_grad = [leader, &model, &part] {
    if (Fabric* const self = leader()) self->drop_gradients(model, part);
  };
  if (!model.strategy->keeps_whole_state()) {
    route.state_dict = [leader, &model, name]() -> std::optional<NamedTensors> {
      const Fabric* const self = leader();
      if (!self) return {};
      NamedTensors mine;
      for (const auto& [entry, tensor] : self->state_everywhere(model)) {
        if (entry.starts_with(name + ".")) mine.emplace_back(entry.substr(name.size() + 1), tensor);
      }
      return mine;
    };
    route.load_state_dict = [leader, name](
                                const NamedTensors&,
                                const nn::LoadOptions&) -> std::optional<nn::LoadResult> {
      WEFT_CHECK(!leader(),
                 "load_state_dict: \"{}\" is a part of a model that was set up; load the model's "
                 "whole state, or the part's before setup()",
                 name);
      return {};
    };
  }
  part.set_route(std::move(route));
}

/// A part may be called in a call of a model that has it. On one device it may be wherever the
/// precision is that of such a call.
void Fabric::check_call(const std::string& name, const nn::Module& part) {
  // A strategy that is called without a Fabric does not say what it calls.
  const bool is_inside = nn::RoutedCall::is_under_way() &&
                         (!innermost || std::ranges::any_of(models_, [&](const auto& model) {
                           return model->parts.contains(&part) && is_in_call_of(*model->module);
                         }));
  if (is_inside) return;
  const auto arithmetic = [] {
    return std::tuple(autocast_dtype(), fp8_in_force(), kernels::matmul_settings());
  };
  const auto here = arithmetic();
  const PrecisionScope scope = autocast();
  WEFT_CHECK(devices_ == 1 && here == arithmetic(),
             "fabric: \"{}\", a part of a model that was set up, was called from outside of the "
             "model, where {}; call model(x), or fabric.forward(model, function) for functions "
             "that call parts, model.forward(x) among them",
             name,
             devices_ > 1 ? fmt::format("strategy {} does not know of it",
                                        dist::strategy_of(options_.strategy, devices_).name)
                          : fmt::format("it would not run in {}", options_.precision));
}

void Fabric::setup_optimizer(optim::Optimizer& optimizer) {
  WEFT_CHECK(!optimizer.has_route(), "fabric: the optimizer was set up already");
  if (low_bits_) low_bits_->check(optimizer);
  WEFT_CHECK(!optimizer.has_stepped(),
             "fabric: set an optimizer up before its first step: its state is of whole parameters");
  forget_the_dead();
  auto entry = std::make_unique<Optimizer>();
  entry->optimizer = &optimizer;
  std::vector<optim::ParameterGroup> groups = optimizer.groups();
  for (optim::ParameterGroup& group : groups) {
    for (auto& [name, tensor] : group.parameters) {
      const auto owner = std::ranges::find_if(
          models_, [id = tensor.id()](const auto& model) { return model->kept.contains(id); });
      WEFT_CHECK(owner != models_.end(),
                 "fabric: parameter \"{}\" of the optimizer is of no model that was set up", name);
      const Tensor& mine = (*owner)->kept.at(tensor.id());
      WEFT_CHECK(mine.shape() == tensor.shape() || !optimizer.needs_whole_parameters(),
                 "fabric: {} needs whole parameters, and the strategy {} cuts \"{}\"",
                 optimizer.kind(), options_.strategy.name, name);
      tensor = mine;
      if (std::ranges::find(entry->models, owner->get()) == entry->models.end()) {
        entry->models.push_back(owner->get());
      }
    }
  }
  optimizer.groups() = std::move(groups);
  const auto token = std::make_shared<int>();
  entry->is_alive = token;
  const std::weak_ptr<Fabric*> fabric = alive_;
  optimizer.set_route(
      {.step =
           [token, fabric, entry = entry.get()](double scale, const kernels::StepGate& gate) {
             return alive(fabric, "optimizer").take_step(*entry, scale, gate);
           },
       .zero_grad = [fabric,
                     entry = entry.get()] { alive(fabric, "optimizer").drop_gradients(*entry); }});
  optimizers_.push_back(std::move(entry));
}

Tensor Fabric::forward(nn::Module& model, const Tensor& x) {
  const Model& entry = find_model(model, "forward");
  const auto run = [&](const Tensor& in) {
    return nn::RoutedCall::is_of(model) ? model.unrouted(in) : entry.strategy->forward(model, in);
  };
  const LedCall call(model);
  const PrecisionScope scope = autocast();
  return forward_logits(run, ops::to(x, device_), precision_);
}

Tensor Fabric::forward(nn::Module& model, const std::function<Tensor()>& function) {
  const Model& entry = find_model(model, "forward");
  const PrecisionScope scope = autocast();
  const bool is_led = nn::RoutedCall::is_of(model);
  const LedCall led(model);
  const nn::RoutedCall call(&model);
  return widened(is_led ? function() : entry.strategy->call(model, function), precision_);
}

void Fabric::run(const dist::MicroBatches& batches) {
  Model& model = only_model("run");
  scaler_.scale(Tensor::scalar(0));  // a pipeline's stage may have no loss of its own to scale
  // One scope for all: each weight is cast once.
  const PrecisionScope scope = autocast();
  const LedCall led(*model.module);
  const nn::RoutedCall call;
  const ScopedValue in_backward(is_in_backward_, true);
  model.strategy->run(*model.module, batches);
}

}  // namespace weft::train
