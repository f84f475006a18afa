// What a Fabric sets up, and how a program's own calls of it are led to the precision and the
// strategy.
#include <algorithm>
#include <mutex>
#include <tuple>
#include <utility>

#include "autograd/autocast.h"
#include "autograd/fp8.h"
#include "autograd/ops.h"
#include "core/scoped_value.h"
#include "dist/strategy/strategy_kind.h"
#include "kernels/gemm/matmul_numerics.h"
#include "nn/class_name.h"
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

/// Which Fabric has set a model up. Where its arguments are no tensor, a program's call is not the
/// module's to lead: who makes it asks here.
class Fabrics {
 public:
  /// The model is known for as long as the result lives. `is_whole`: it is so without the Fabric.
  std::shared_ptr<void> add(const nn::Module& model, const std::weak_ptr<Fabric*>& fabric,
                            bool is_whole) {
    const std::lock_guard lock(mutex_);
    of_[&model] = {fabric, is_whole};
    return {nullptr, [this, &model](void*) {
              const std::lock_guard lock(mutex_);
              of_.erase(&model);
            }};
  }
  Fabric* find(const nn::Module& model) {
    const std::lock_guard lock(mutex_);
    const auto found = of_.find(&model);
    const auto fabric = found == of_.end() ? nullptr : found->second.fabric.lock();
    return fabric ? *fabric : nullptr;
  }
  /// Whether the Fabric that has set the model up is gone. Throws Error where the model went with
  /// it.
  bool is_left(const nn::Module& model) {
    const std::lock_guard lock(mutex_);
    const auto found = of_.find(&model);
    if (found == of_.end() || !found->second.fabric.expired()) return false;
    WEFT_CHECK(found->second.is_whole,
               "fabric: the model {} was set up already, by a Fabric that is gone and had it in "
               "parts; expected a new one, which loads a state that was saved",
               nn::class_name(model));
    return true;
  }

 private:
  struct Known {
    std::weak_ptr<Fabric*> fabric;
    bool is_whole = false;
  };
  std::mutex mutex_;
  std::unordered_map<const nn::Module*, Known> of_;
};

/// Never destroyed: models may be there when static objects go.
Fabrics& fabrics() {
  static auto* const all = new Fabrics;
  return *all;
}

/// Whether the call at hand, or one that it was made in, is of that model.
bool is_in_call_of(const nn::Module& model) {
  const Led* led = innermost;
  while (led && led->model != &model) led = led->outer;
  return led != nullptr;
}

}  // namespace

void Fabric::share_buffers(nn::Module& model) {
  if (const Model* const entry = model_of(model)) entry->strategy->share_buffers(model);
}

Fabric::Model& Fabric::only_model(std::string_view function) {
  forget_the_dead();
  WEFT_CHECK(!models_.empty(), "fabric: call setup() before {}()", function);
  WEFT_CHECK(
      models_.size() == 1,
      "fabric: {}() is for one model, {} were set up; call the model itself, or name what is meant",
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

/// The parameter that this is, or is this rank's part of, and its model; nulls: of none that was
/// set up.
std::pair<Fabric::Model*, Fabric::Parameter*> Fabric::find_parameter(const Tensor& tensor) const {
  for (const auto& model : models_) {
    if (model->is_alive.expired()) continue;  // one of its optimizers lives
    const auto place = model->places.find(tensor.id());
    if (place != model->places.end()) return {model.get(), &model->parameters[place->second]};
  }
  return {nullptr, nullptr};
}

/// A parameter of two models would be moved, cut and summed by each of them.
void Fabric::check_unshared(const nn::Module& model) const {
  for (const auto& [name, tensor] : model.named_parameters()) {
    const auto [owner, parameter] = find_parameter(tensor);
    WEFT_CHECK(!owner,
               "fabric: parameter \"{}\" of the model {} is also \"{}\" of the model {} that was "
               "set up; expected models that share no parameters, or one model that has all",
               name, nn::class_name(model), parameter->name, nn::class_name(*owner->module));
    WEFT_CHECK(owner || !optim::has_gradient_owner({tensor}),
               "fabric: parameter \"{}\" of the model {} is also of a model that another Fabric "
               "has set up",
               name, nn::class_name(model));
  }
}

/// Those of the model's parameters that the optimizer has.
std::vector<Fabric::Parameter*> Fabric::trained_by(const Optimizer& entry, Model& model) {
  std::vector<Parameter*> trained;
  for (const Tensor& tensor : entry.optimizer->parameters()) {
    const auto place = model.places.find(tensor.id());
    if (place != model.places.end()) trained.push_back(&model.parameters[place->second]);
  }
  return trained;
}

/// Of all models.
std::vector<Fabric::Parameter*> Fabric::trained_by(const Optimizer& entry) {
  std::vector<Parameter*> trained;
  for (Model* const model : entry.models) {
    const std::vector<Parameter*> some = trained_by(entry, *model);
    trained.insert(trained.end(), some.begin(), some.end());
  }
  return trained;
}

/// Models and optimizers may go before the Fabric. The loss scale may have waited for one of these,
/// or for gradients that were dropped.
void Fabric::forget_the_dead() {
  const auto is_dead = [](const auto& entry) { return entry->is_alive.expired(); };
  for (const auto& entry : optimizers_) {
    if (is_dead(entry) && entry->is_unscaled) scaler_.forget(entry->optimizer);
  }
  std::erase_if(optimizers_, is_dead);
  std::erase_if(models_, [&](const auto& model) {
    // An optimizer's list of models must not dangle.
    return is_dead(model) && std::ranges::none_of(optimizers_, [&](const auto& optimizer) {
             return std::ranges::count(optimizer->models, model.get()) > 0;
           });
  });
  if (is_update_due_) update_scale();
}

void Fabric::setup_model(nn::Module& model, const nn::ModelStructure& structure) {
  WEFT_CHECK(geometry_, "fabric: call launch() before setup()");
  for (const auto& [name, part] : model.named_modules()) {
    if (fabrics().is_left(*part)) part->set_route({});
  }
  WEFT_CHECK(!model.has_route(), "fabric: the model was set up already");
  forget_the_dead();
  check_unshared(model);
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
    entry->parameters.push_back({.name = whole[i].first, .whole = whole[i].second, .kept = mine});
    for (const Tensor& tensor : {whole[i].second, mine}) {
      if (entry->places.try_emplace(tensor.id(), i).second) all.push_back(tensor);
    }
  }
  entry->ownership = optim::own_gradients(all, gradients_);
  const std::weak_ptr<Fabric*> fabric = alive_;
  const std::shared_ptr<void> token = fabrics().add(model, fabric, leaves_whole(*entry));
  entry->is_alive = token;
  const bool keeps_state = entry->strategy->keeps_whole_state();
  watch_backward(*entry);
  model.set_route(
      {.forward =
           [token, fabric, &model](const Tensor& x) {
             Fabric& self = alive(fabric, "model");
             self.check_logits(model);
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
       .state_dict = [fabric, keeps_state, entry = entry.get()]() -> std::optional<NamedTensors> {
         if (keeps_state) return {};
         return alive(fabric, "state_dict").state_everywhere(*entry);
       },
       .refuse = [fabric, &model] { alive(fabric, "model").check_call("", model); }});
  for (const auto& [name, part] : model.named_modules()) {
    entry->parts.insert(part);
    if (!part->has_route()) lead_part(*entry, name, *part);
  }
  models_.push_back(std::move(entry));
}

/// Of a level of fp8 weights rest in few bits.
bool Fabric::leaves_whole(const Model& model) const {
  return model.strategy->keeps_whole_state() && !low_bits_;
}

void Fabric::release(nn::Module& module) {
  Model& model = find_model(module, "release");
  WEFT_CHECK(
      leaves_whole(model),
      "fabric: the model {} was set up already, and {} does not leave it whole; expected a "
      "new one, which loads its state_dict()",
      nn::class_name(module),
      low_bits_ ? "fp8_level" : "strategy " + dist::strategy_of(options_.strategy, devices_).name);
  for (const auto& entry : optimizers_) {
    if (std::ranges::find(entry->models, &model) == entry->models.end()) continue;
    settle(*entry);
    entry->optimizer->set_route({});
  }
  if (geometry_ == model.strategy) {
    geometry_ = make_strategy();
    is_geometry_used_ = false;
  }
  for (const auto& [name, part] : module.named_modules()) {
    if (part == &module || !part->has_route()) part->set_route({});
  }
  forget_the_dead();
  module.zero_grad();
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

/// A part, or the model's own forward(), may be called in a call of a model that has it. On one
/// device it may be wherever the precision is that of such a call.
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
             "fabric: {} was called from outside of the model, where {}; call model(x), or "
             "fabric.forward(model, function) for functions that call parts, model.forward(x) "
             "among them",
             name.empty() ? fmt::format("forward() of the model {}", nn::class_name(part))
                          : fmt::format("\"{}\", a part of a model that was set up,", name),
             devices_ > 1 ? fmt::format("strategy {} does not know of it",
                                        dist::strategy_of(options_.strategy, devices_).name)
                          : fmt::format("it would not run in {}", options_.precision));
}

void Fabric::setup(nn::Module& model, const std::vector<optim::Optimizer*>& optimizers,
                   const nn::ModelStructure& structure) {
  check_optimizers(optimizers, &model);
  setup_model(model, structure);
  for (optim::Optimizer* const optimizer : optimizers) add_optimizer(*optimizer);
}

void Fabric::setup_optimizers(const std::vector<optim::Optimizer*>& optimizers) {
  forget_the_dead();
  check_optimizers(optimizers, nullptr);
  for (optim::Optimizer* const optimizer : optimizers) add_optimizer(*optimizer);
}

/// All that may be wrong with optimizers, before any of them is set up, and before the model that
/// is to come with them, if there is one.
void Fabric::check_optimizers(const std::vector<optim::Optimizer*>& optimizers,
                              const nn::Module* coming) const {
  WEFT_CHECK(geometry_, "fabric: call launch() before setup()");
  std::unordered_set<const void*> to_come;
  if (coming) {
    for (const Tensor& tensor : coming->parameters()) to_come.insert(tensor.id());
  }
  std::unordered_set<const void*> taken;  // by optimizers that divide gradients by the loss scale
  for (const auto& other : optimizers_) {
    if (other->is_alive.expired()) continue;
    for (const Tensor& tensor : other->optimizer->parameters()) taken.insert(tensor.id());
  }
  std::unordered_set<const optim::Optimizer*> seen;
  for (const optim::Optimizer* const optimizer : optimizers) {
    WEFT_CHECK(optimizer, "fabric: setup(): an optimizer is null");
    WEFT_CHECK(!optimizer->has_route(), "fabric: the optimizer was set up already");
    WEFT_CHECK(seen.insert(optimizer).second,
               "fabric: setup() of one {} twice; expected each optimizer once", optimizer->kind());
    if (low_bits_) low_bits_->check(*optimizer);
    WEFT_CHECK(
        !optimizer->has_stepped(),
        "fabric: set an optimizer up before its first step: its state is of whole parameters");
    WEFT_CHECK(
        !optimizer->needs_whole_parameters() || !geometry_->cuts_parameters(),
        "fabric: {} needs whole parameters; the strategy {} cuts some, and refuses it for all",
        optimizer->kind(), options_.strategy.name);
    for (const optim::ParameterGroup& group : optimizer->groups()) {
      for (const auto& [name, tensor] : group.parameters) {
        const Parameter* const parameter = find_parameter(tensor).second;
        WEFT_CHECK(parameter || to_come.contains(tensor.id()),
                   "fabric: parameter \"{}\" of the optimizer is of no model that was set up",
                   name);
        const bool is_first = taken.insert((parameter ? parameter->kept : tensor).id()).second;
        WEFT_CHECK(is_first || !scaler_.is_enabled(),
                   "fabric: parameter \"{}\" is in another optimizer, too: in {} both would divide "
                   "its gradient by the loss scale",
                   name, options_.precision);
      }
    }
  }
}

void Fabric::add_optimizer(optim::Optimizer& optimizer) {
  auto entry = std::make_unique<Optimizer>();
  entry->optimizer = &optimizer;
  std::vector<optim::ParameterGroup> groups = optimizer.groups();
  for (optim::ParameterGroup& group : groups) {
    for (auto& [name, tensor] : group.parameters) {
      const auto [owner, parameter] = find_parameter(tensor);
      tensor = parameter->kept;
      if (std::ranges::find(entry->models, owner) == entry->models.end()) {
        entry->models.push_back(owner);
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
  Model& entry = find_model(model, "forward");
  const auto run = [&](const Tensor& in) {
    if (nn::RoutedCall::is_of(model)) return model.unrouted(in);
    const Tensor output = entry.strategy->forward(model, in);
    watch_outputs(entry, {output});
    return output;
  };
  const LedCall call(model);
  const PrecisionScope scope = autocast();
  return widened(run(input(x, true)), precision_);
}

Tensor Fabric::forward(nn::Module& model, const std::function<Tensor()>& function) {
  return forward(model, std::function<Tensors()>([&] { return Tensors{function()}; }))[0];
}

Tensors Fabric::forward(nn::Module& model, const std::function<Tensors()>& function) {
  Model& entry = find_model(model, "forward");
  const PrecisionScope scope = autocast();
  const bool is_led = nn::RoutedCall::is_of(model);
  const LedCall led(model);
  const nn::RoutedCall call(&model);
  Tensors outputs = is_led ? function() : entry.strategy->call(model, function);
  if (!is_led) watch_outputs(entry, outputs);
  for (Tensor& output : outputs) output = widened(output, precision_);
  return outputs;
}

Tensors Fabric::lead(nn::Module& model, const std::function<Tensors()>& call) {
  check_logits(model);
  return forward(model, call);
}

void Fabric::check_logits(const nn::Module& model) const {
  WEFT_CHECK(!options_.strategy.parallel_head || !model.is_training(),
             "fabric: with a parallel head a rank has the logits of some classes alone; call "
             "fabric.forward() and fabric.cross_entropy()");
}

Tensor Fabric::input(const Tensor& x, bool is_image) const {
  const Tensor here = ops::to(x, device_);
  const bool is_cast = is_floating(x.dtype()) || (is_image && x.dtype() == DType::u8);
  return is_cast ? ops::cast(here, precision_.parameters) : here;
}

Fabric* Fabric::of(const nn::Module& model) { return fabrics().find(model); }

void Fabric::run(const dist::MicroBatches& batches) {
  Model& model = only_model("run");
  scaler_.scale(Tensor::scalar(0));  // a pipeline's stage may have no loss of its own to scale
  // One scope for all: each weight is cast once.
  const PrecisionScope scope = autocast();
  const LedCall led(*model.module);
  const nn::RoutedCall call;
  run_backward([&] { model.strategy->run(*model.module, batches); });
}

}  // namespace weft::train
