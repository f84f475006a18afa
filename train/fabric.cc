#include "train/fabric.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <tuple>
#include <utility>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/fp8.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/runtime.h"
#include "core/scoped_value.h"
#include "core/transfer.h"
#include "dist/comm/device/on_device.h"
#include "dist/comm/processes/join.h"
#include "dist/comm/processes/launch.h"
#include "dist/comm/tree_accumulator.h"
#include "dist/model_parallel/rank_collectives.h"
#include "dist/strategy/aliases.h"
#include "dist/strategy/fp8_gradients.h"
#include "dist/strategy/fp8_zero.h"
#include "dist/strategy/strategy_kind.h"
#include "kernels/gemm/matmul_numerics.h"
#include "optim/clip.h"
#include "train/sharded_state.h"

namespace weft::train {
namespace {

optim::GradScalerOptions scaler_of(const FabricOptions& options, const Precision& precision) {
  optim::GradScalerOptions scaler = options.numerics.loss_scale;
  scaler.enabled = scaler.enabled && precision.scales_loss();
  return scaler;
}

/// With our names, and what the strategy has to know of the precision.
FabricOptions completed(FabricOptions options) {
  options.strategy = dist::named_here(options.strategy);
  options.state_dict_type = dist::state_dict_type_here(options.state_dict_type);
  const DType products = find_precision(options.precision).rounds_weights_to();
  options.strategy.product_dtype = products == DType::f32 ? "" : name(products);
  options.strategy.device_numbers = options.devices.numbers;
  return options;
}

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

bool has_gradient(const Tensors& parameters) {
  return std::ranges::any_of(parameters, [](const Tensor& p) { return p.grad().defined(); });
}

void drop_gradients_of(const Tensors& parameters) {
  for (const Tensor& p : parameters) {
    if (p.grad().defined()) p.set_grad({});
  }
}

}  // namespace

FabricOptions from_environment(FabricOptions options) {
  const auto read = [](const char* name, const std::function<void(const char*)>& take) {
    const char* const value = std::getenv(name);
    if (!value || *value == '\0') return;
    try {
      take(value);
    } catch (const Error& error) {
      WEFT_FAIL("{}: {}", name, error.what());
    }
  };
  read("WEFT_DEVICE", [&](const char* value) {
    parse_device(value);
    options.device = value;
  });
  read("WEFT_DEVICES", [&](const char* value) { options.devices = value; });
  read("WEFT_NUM_NODES", [&](const char* value) { options.num_nodes = Devices(value).count; });
  read("WEFT_PRECISION", [&](const char* value) {
    find_precision(value);
    options.precision = value;
  });
  read("WEFT_STRATEGY", [&](const char* value) {
    options.strategy.name = value;
    options.strategy = dist::named_here(options.strategy);
  });
  read("WEFT_STATE_DICT_TYPE",
       [&](const char* value) { options.state_dict_type = dist::state_dict_type_here(value); });
  return options;
}

/// Answers for the gradients of all models that were set up.
class Fabric::Gradients : public optim::GradientOwner {
 public:
  explicit Gradients(Fabric& fabric) : fabric_(fabric) {}

  Tensors complete(const Tensors& parameters) override {
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

  Tensor norm(const Tensors& mine) override {
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

  static void check_summed(const Model& model, const char* what) {
    WEFT_CHECK(!model.has_local,
               "fabric: {} before the gradients have been summed over the ranks: the last "
               "backward() of a step has to be outside of no_backward_sync()",
               what);
  }

 private:
  Tensor kept(const Tensor& parameter) const {
    for (const auto& model : fabric_.models_) {
      const auto found = model->kept.find(parameter.id());
      if (found != model->kept.end()) return found->second;
    }
    WEFT_FAIL("clipping: {} is of a model that is gone", parameter);
  }

  Fabric& fabric_;
};

Fabric::Fabric(const FabricOptions& options)
    : options_(completed(options)),
      precision_(find_precision(options.precision)),
      scaler_(scaler_of(options, precision_)),
      fp8_(options.numerics.fp8),
      device_(parse_device(options.device)),
      gradients_(std::make_shared<Gradients>(*this)) {
  WEFT_CHECK(options.num_nodes > 0 && options.accumulate > 0,
             "fabric: num_nodes and accumulate must be positive, got {} and {}", options.num_nodes,
             options.accumulate);
  WEFT_CHECK(std::ranges::count(options.loggers, nullptr) == 0, "fabric: a logger is null");
  dist::parse_collectives(options.collectives);  // throws sooner than launch()
  const Fp8Level level = parse_fp8_level(options.numerics.fp8_level);
  if (level != Fp8Level::kNone) low_bits_.emplace(level);
  // All devices, under a launcher, are the ranks that it has started.
  if (options.devices.count == 0 && dist::is_rank()) return;
  devices_ = options.devices.on(device_) * options.num_nodes;
  sharing_ = dist::sharing_of(options_.strategy, devices_);
  WEFT_CHECK(devices_ == 1 || device_.index == 0,
             "fabric: {} devices, but device \"{}\" is one of them; expected \"{}\"", devices_,
             options.device, name(device_.type));
  WEFT_CHECK(options.num_nodes == 1 || sharing_->threads == 1,
             "fabric: {} nodes, but dp has threads of one program; use ddp", options.num_nodes);
}

Fabric::~Fabric() {
  if (!has_logged_) return;
  for (const auto& logger : options_.loggers) {
    try {
      logger->finish();
    } catch (...) {  // what it had to say, it has said while it wrote
    }
  }
}

const dist::Sharing& Fabric::sharing() const {
  WEFT_CHECK(sharing_, "fabric: call launch() first: it counts the devices");
  return *sharing_;
}

PrecisionScope Fabric::autocast() {
  const NumericsOptions& numerics = options_.numerics;
  return PrecisionScope(precision_, numerics.accumulation, &fp8_, numerics.tf32_rounding);
}

std::optional<int> Fabric::launch(int argc, char** argv) {
  if (!dist::is_rank() && sharing().ranks() > 1) {
    WEFT_CHECK(options_.num_nodes == 1,
               "fabric: {} nodes need a launcher, mpirun, srun or torchrun, that starts ranks on "
               "each",
               options_.num_nodes);
    std::vector<std::string> command(argv, argv + argc);
    command.at(0) = std::filesystem::read_symlink("/proc/self/exe");
    return dist::launch({.ranks = sharing().ranks()}, command);
  }
  launch(dist::is_rank() ? dist::join_world() : nullptr);
  return {};
}

void Fabric::launch(dist::CommunicatorPtr world) {
  WEFT_CHECK(!geometry_, "fabric: launch() was called already");
  require_device(device_);
  world_ = std::move(world);
  if (!sharing_) {
    devices_ = size();
    sharing_ = dist::sharing_of(options_.strategy, devices_);
  }
  WEFT_CHECK(size() == sharing_->ranks(),
             "fabric: {} devices were asked for, {} ranks were started", devices_, size());
  if (size() > 1 || !options_.devices.numbers.empty()) {
    const bool are_processes = dist::is_rank();  // else threads of one
    device_ = options_.devices.of_rank(device_, are_processes ? dist::local_rank() : rank());
    require_device(device_);
  }
  if (size() > 1) {
    const dist::Collectives collectives = dist::parse_collectives(options_.collectives);
    world_ = dist::on_device(std::move(world_), device_, collectives);
  }
  geometry_ = make_strategy();
}

std::shared_ptr<dist::Strategy> Fabric::make_strategy() const {
  if (!low_bits_) return dist::make_strategy(options_.strategy, world_, devices_);
  check_fp8_level(options_.numerics.fp8_level, precision_, options_.strategy, devices_);
  if (parse_fp8_level(options_.numerics.fp8_level) == Fp8Level::kO3) {
    return dist::make_fp8_zero(world_);
  }
  return std::make_shared<dist::Fp8Gradients>(world_);
}

dist::Strategy& Fabric::strategy() const {
  WEFT_CHECK(geometry_, "fabric: call launch() first");
  return models_.empty() ? *geometry_ : *models_.front()->strategy;
}

// What was set up.

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

void Fabric::setup_dataloader(data::Loader& loader) const {
  WEFT_CHECK(geometry_, "fabric: call launch() before setup_dataloader()");
  data::LoaderOptions options = loader.options();
  if (!options_.split_batches) options.batch_size *= data_devices();
  options.micro_batches = options.ranks = data_size();
  options.rank = data_rank();
  options.device = device_;
  options.fills_empty = true;
  options.watch = watch_;
  loader.set_options(options);
}

std::unique_ptr<data::Loader> Fabric::setup_dataloader(data::DatasetPtr dataset,
                                                       data::LoaderOptions options) const {
  WEFT_CHECK(geometry_, "fabric: call launch() before setup_dataloader()");
  options.batch_size *= data_devices();
  options.micro_batches = options.ranks = data_size();
  options.rank = data_rank();
  options.device = device_;
  options.fills_empty = true;
  options.watch = watch_;
  return std::make_unique<data::Loader>(std::move(dataset), options);
}

// Forward and backward.

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

// Collectives.

void Fabric::all_reduce(const Tensor& x, dist::ReduceOp op) const {
  if (world_) world_->all_reduce(x, op).wait();
}

Tensor Fabric::all_gather(const Tensor& x) const {
  if (is_recording({x})) {
    const Tensor row = ops::unsqueeze(x, 0);
    return world_ ? dist::gather_sequence(row, 0, world_) : row;
  }
  const NoGrad guard;
  if (!world_) return ops::clone(ops::unsqueeze(x, 0));
  Shape shape = x.shape();
  shape.insert(0, size());
  const Tensor all = Tensor::empty(shape, x.dtype(), x.device());
  world_->all_gather(all, ops::contiguous(x)).wait();
  return all;
}

Tensor Fabric::gather_for_metrics(const Tensor& x) const {
  const NoGrad guard;
  WEFT_CHECK(x.dim() > 0, "gather_for_metrics: expected a row for each sample, got {}", x);
  const int64_t rows = std::max<int64_t>(0, x.size(0) - watch_->fillers);
  if (!world_) return ops::clone(ops::narrow(detach(x), 0, 0, rows));
  // Of ranks with the same samples one counts. Their places are those of the data ranks.
  const bool counts = strategy().counts();
  const Tensor mine = Tensor::from(std::vector<int64_t>{counts ? rows : 0, data_rank()}, {2});
  const Tensor all = Tensor::empty({size(), 2}, DType::i64);
  world_->all_gather(all, mine).wait();
  int64_t most = 0;
  for (int r = 0; r < size(); ++r) most = std::max(most, all.data<int64_t>()[2 * r]);
  Shape shape = x.shape();
  shape[0] = std::max<int64_t>(most, 1);
  Tensor sent = Tensor::zeros(shape, x.dtype(), x.device());
  const int64_t own = counts ? rows : 0;
  if (own > 0) {
    Tensor place = ops::narrow(sent, 0, 0, own);
    ops::copy_(place, ops::narrow(detach(x), 0, 0, own));
  }
  const Tensor gathered = all_gather(sent);
  std::vector<std::pair<int64_t, Tensor>> parts;
  for (int r = 0; r < size(); ++r) {
    const int64_t count = all.data<int64_t>()[2 * r];
    if (count == 0) continue;
    const Tensor part = ops::reshape(ops::narrow(gathered, 0, r, 1), shape);
    parts.emplace_back(all.data<int64_t>()[2 * r + 1], ops::narrow(part, 0, 0, count));
  }
  std::ranges::stable_sort(parts, {}, [](const auto& part) { return part.first; });
  Tensors in_order;
  for (const auto& [place, part] : parts) in_order.push_back(part);
  if (in_order.empty()) return ops::clone(ops::narrow(sent, 0, 0, 0));
  return ops::cat(in_order, 0);
}

void Fabric::broadcast(const Tensor& x, int source) const {
  if (world_) world_->broadcast(x, source).wait();
}

void Fabric::barrier() const {
  if (world_) world_->barrier().wait();
}

void Fabric::log(const std::string& name, double value, int64_t step) {
  log_dict({{name, value}}, step);
}

void Fabric::log_dict(const NamedValues& values, int64_t step) {
  if (!is_main()) return;
  if (!has_logged_) {
    for (const auto& logger : options_.loggers) logger->begin(step);
    has_logged_ = true;
  }
  for (const auto& logger : options_.loggers) logger->log_metrics(step, values);
}

void Fabric::seed_everything(uint64_t seed) const {
  // The weights that count are rank 0's; what follows differs where the samples do.
  const int rank = data_rank();
  manual_seed(seed);
  generator().stream = static_cast<uint64_t>(rank) << 32;
}

}  // namespace weft::train
