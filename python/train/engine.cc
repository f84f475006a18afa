// weft.train.initialize: DeepSpeed's loop.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <variant>

#include "data/loader.h"
#include "data/tensors/tensor_dataset.h"
#include "python/bindings.h"
#include "python/casters.h"
#include "python/containers.h"
#include "python/json.h"
#include "python/model_call.h"
#include "python/modules.h"
#include "python/schedule.h"
#include "train/config_files/config_file.h"
#include "train/engine/engine.h"
#include "train/optimization.h"

namespace weft::python {
namespace {

using train::ConfigFile;
using train::Engine;

/// Where a checkpoint's client_state keeps the scheduler's state.
constexpr const char* kScheduler = "weft.lr_scheduler";

struct OwnEngine : Engine {
  using Engine::Engine;
  nb::object callers_scheduler = nb::none();  // an object that the engine steps
};

/// As JSON. Throws a TypeError that says of what.
nlohmann::json named_json(const char* what, nb::handle object) {
  std::string reason;
  try {
    return json_of(object);
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    reason = nb::str(error.value()).c_str();
  } catch (const nb::builtin_exception& error) {
    reason = error.what();
  }
  throw type_error("{}: expected what JSON holds: {}", what, reason);
}

/// Of a path or of a dict.
ConfigFile file_of(const nb::object& config) {
  if (nb::isinstance<nb::str>(config)) {
    return train::read_config_file(nb::cast<std::string>(config));
  }
  if (nb::hasattr(config, "__fspath__")) {
    return train::read_config_file(nb::cast<std::string>(config.attr("__fspath__")()));
  }
  return train::read_config(named_json("initialize: config", config), "config");
}

void make_engine(OwnEngine* self, nn::Module& model, const nb::object& config,
                 optim::Optimizer* optimizer, const nb::object& lr_scheduler,
                 const std::string& device) {
  train::EngineOptions options = {.device = device, .optimizer = optimizer};
  ConfigFile file = file_of(config);
  if (nb::hasattr(lr_scheduler, "step")) {
    if (!optimizer) {
      throw type_error(
          "initialize: lr_scheduler, a {}, has an optimizer of its own: expected that as "
          "optimizer, got None",
          type_of(lr_scheduler));
    }
    file.settings.erase("schedule");
  } else if (PyCallable_Check(lr_scheduler.ptr())) {
    options.lr_scheduler =
        schedule_of("initialize: lr_scheduler", nb::cast<ScheduleFunction>(lr_scheduler));
  } else if (!lr_scheduler.is_none()) {
    throw type_error(
        "initialize: lr_scheduler: expected a Scheduler or a function of the step, got a {}",
        type_of(lr_scheduler));
  }
  new (self) OwnEngine(model, with_replica(model.structure(), model), file, std::move(options));
  watch_forward(nb::find(model));
  if (nb::hasattr(lr_scheduler, "step")) self->callers_scheduler = lr_scheduler;
}

/// Parameters without a name have the model's, by which a checkpoint knows them.
nb::list named(const nn::Module& model, nb::handle parameters) {
  const NamedTensors known = model.named_parameters();
  nb::list all;
  for (nb::handle parameter : parameters) {
    if (nb::isinstance<nb::dict>(parameter)) {
      nb::dict group;
      group.update(nb::borrow<nb::dict>(parameter));
      if (group.contains("params")) group["params"] = named(model, group["params"]);
      all.append(group);
      continue;
    }
    if (!nb::isinstance<Tensor>(parameter)) {  // a name and a tensor
      all.append(parameter);
      continue;
    }
    const auto x = nb::cast<Tensor>(parameter);
    const auto found =
        std::ranges::find_if(known, [&](const auto& entry) { return entry.second.is_same(x); });
    if (found == known.end()) {
      throw value_error("initialize: model_parameters: expected parameters of the model, got {}",
                        x);
    }
    all.append(nb::make_tuple(found->first, x));
  }
  return all;
}

/// The configuration's optimizer over these parameters alone; None where it has none.
nb::object optimizer_of(const nn::Module& model, const nb::object& config, nb::handle parameters) {
  const ConfigFile file = file_of(config);
  if (!file.settings.contains("optimizer")) return nb::none();
  const train::Config settings = train::deepspeed_config(file);
  nb::dict options;
  for (const auto& [name, value] : train::optimizer_options(settings)) {
    options[name.c_str()] = value;
  }
  return nb::module_::import_("weft._weft.optim")
      .attr("make_optimizer")(settings.optimizer, named(model, parameters), **options);
}

/// A data set as a loader of micro-batches, or an iterable of them, shared out to the ranks.
nb::object loader_of(nb::handle engine, const nb::object& samples) {
  const auto batch_size = nb::cast<OwnEngine&>(engine).train_micro_batch_size_per_gpu();
  nb::object loader = samples;
  if (nb::isinstance<data::Dataset>(samples)) {
    loader = nb::type<data::Loader>()(samples, batch_size, true);
  } else if (nb::hasattr(samples, "__getitem__") && nb::hasattr(samples, "__len__")) {
    loader = nb::type<data::TensorLoader>()(samples, batch_size, true);
  } else if (!nb::hasattr(samples, "__iter__")) {
    throw type_error(
        "initialize: training_data: expected a data set, with a length and items, or an iterable "
        "of batches, got a {}",
        type_of(samples));
  }
  return engine.attr("fabric").attr("setup_dataloader")(loader);
}

nb::object config_of(const nb::object& args, const nb::object& config, const nb::object& params) {
  if (!config.is_none() && !params.is_none()) {
    throw nb::type_error("initialize: config_params is config by another name; expected one");
  }
  if (!config.is_none()) return config;
  if (!params.is_none()) return params;
  const nb::object named = nb::getattr(args, "deepspeed_config", nb::none());
  if (named.is_none()) {
    throw nb::type_error("initialize: expected config, a dict or a file's path, got None");
  }
  return named;
}

nb::tuple initialize(const nb::object& args, const nb::object& model, nb::object optimizer,
                     const nb::object& model_parameters, const nb::object& training_data,
                     const nb::object& lr_scheduler, const nb::object& config,
                     const nb::object& config_params, const std::string& device) {
  if (!nb::isinstance<nn::Module>(model)) {
    throw type_error("initialize: expected a model, got a {}", type_of(model));
  }
  const nb::object given = config_of(args, config, config_params);
  if (optimizer.is_none() && !model_parameters.is_none()) {
    optimizer = optimizer_of(nb::cast<nn::Module&>(model), given, model_parameters);
  }
  const nb::object engine =
      nb::type<OwnEngine>()("model"_a = model, "config"_a = given, "optimizer"_a = optimizer,
                            "lr_scheduler"_a = lr_scheduler, "device"_a = device);
  const nb::object loader = training_data.is_none() ? nb::none() : loader_of(engine, training_data);
  return nb::make_tuple(engine, engine.attr("optimizer"), loader, engine.attr("lr_scheduler"));
}

}  // namespace

void bind_engine(nb::module_ m) {
  nb::class_<OwnEngine>(m, "Engine", "DeepSpeed's loop: what initialize() returns.")
      .def("__init__", make_engine, nb::kw_only(), "model"_a, "config"_a,
           "optimizer"_a = nb::none(), "lr_scheduler"_a = nb::none(), "device"_a = "cpu",
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 4>())
      .def(
          "__call__",
          [](nb::handle_t<OwnEngine> self, const nb::args& inputs, const nb::kwargs& options) {
            auto& engine = nb::cast<OwnEngine&>(self);
            {
              const nb::gil_scoped_release unlocked;
              engine.begin_forward();
            }
            return self.attr("module")(*inputs, **options);
          },
          "The model on its inputs, in the precision of the configuration.")
      .def(
          "backward",
          [](OwnEngine& self, const Tensor& loss, bool retain_graph) {
            WEFT_CHECK(!retain_graph,
                       "engine: backward(): retain_graph: expected False: a graph is freed while "
                       "it runs; call backward() once, of the sum of the losses");
            self.backward(loss);
          },
          "loss"_a, "retain_graph"_a = false, Unlocked(),
          "Adds the gradients of the loss, this micro-batch's mean. retain_graph: False alone.")
      .def(
          "step",
          [](OwnEngine& self) {
            {
              const nb::gil_scoped_release unlocked;
              self.step();
            }
            const nb::object scheduler = self.callers_scheduler;
            if (self.was_step_applied() && !scheduler.is_none()) scheduler.attr("step")();
          },
          "Ends the micro-batch; at the boundary clips, steps the optimizer and the scheduler, and "
          "drops the gradients.")
      .def("is_gradient_accumulation_boundary", &Engine::is_gradient_accumulation_boundary,
           "Whether the micro-batch at hand is a step's last.")
      .def("set_gradient_accumulation_boundary", &Engine::set_gradient_accumulation_boundary,
           "is_boundary"_a, "Says so from here on, instead of the count.")
      .def("train", &Engine::train, "mode"_a = true)
      .def("eval", &Engine::eval)
      .def("train_batch_size", &Engine::train_batch_size, "Samples of a step on all ranks.")
      .def("train_micro_batch_size_per_gpu", &Engine::train_micro_batch_size_per_gpu)
      .def("gradient_accumulation_steps", &Engine::gradient_accumulation_steps)
      .def("was_step_applied", &Engine::was_step_applied)
      .def("get_lr", &Engine::get_lr, "Of each group of parameters.")
      .def("get_global_grad_norm", &Engine::get_global_grad_norm,
           "Before clipping, of the latest boundary; None before the first.")
      .def("loss_scale", &Engine::loss_scale)
      .def_prop_ro("micro_steps", &Engine::micro_steps)
      .def_prop_ro("global_steps", &Engine::global_steps)
      .def_prop_ro("skipped_steps", &Engine::skipped_steps)
      .def_prop_ro("global_samples", &Engine::global_samples)
      .def_prop_ro("module", &Engine::module, nb::rv_policy::reference_internal)
      .def_prop_ro("optimizer", &Engine::optimizer, nb::rv_policy::reference_internal)
      .def_prop_ro("fabric", &Engine::fabric, nb::rv_policy::reference_internal)
      .def_prop_ro(
          "device", [](OwnEngine& self) { return self.fabric().device(); },
          "Where this rank computes.")
      .def_prop_ro(
          "local_rank", [](OwnEngine& self) { return self.fabric().local_rank(); },
          "Among the ranks of this host.")
      .def_prop_ro(
          "lr_scheduler",
          [](OwnEngine& self) -> std::variant<nb::object, optim::Scheduler*> {
            if (!self.callers_scheduler.is_none()) return self.callers_scheduler;
            return self.lr_scheduler();
          },
          nb::rv_policy::reference_internal,
          "The caller's, or a Scheduler of the config's schedule or of the caller's function; None "
          "without one. step() steps it.")
      .def(
          "save_checkpoint",
          [](OwnEngine& self, const std::string& directory, const std::optional<std::string>& tag,
             const nb::dict& client_state, bool save_latest) {
            train::EngineCheckpoint checkpoint = {
                .tag = tag.value_or(""),
                .client_state = named_json("save_checkpoint: client_state", client_state),
                .save_latest = save_latest};
            const nb::object scheduler = self.callers_scheduler;
            if (nb::hasattr(scheduler, "state_dict")) {
              checkpoint.client_state[kScheduler] = named_json(
                  "save_checkpoint: the lr_scheduler's state", scheduler.attr("state_dict")());
            }
            const nb::gil_scoped_release unlocked;
            self.save_checkpoint(directory, std::move(checkpoint));
          },
          "save_dir"_a, "tag"_a = nb::none(), "client_state"_a = nb::dict(), "save_latest"_a = true,
          "Writes save_dir/tag, whole or not at all, and save_dir/latest, which names it. Every "
          "rank calls.")
      .def(
          "load_checkpoint",
          [](OwnEngine& self, const std::string& directory, const std::optional<std::string>& tag,
             bool is_strict, bool optimizer_states, bool lr_scheduler_states, bool module_only) {
            WEFT_CHECK(is_strict,
                       "engine: load_checkpoint(): load_module_strict: expected True, got False: a "
                       "model takes all of its tensors from a checkpoint");
            std::optional<train::LoadedCheckpoint> loaded;
            {
              const nb::gil_scoped_release unlocked;
              loaded = self.load_checkpoint(directory, tag.value_or(""),
                                            {.optimizer_states = optimizer_states,
                                             .lr_scheduler_states = lr_scheduler_states,
                                             .module_only = module_only});
            }
            if (!loaded) return nb::make_tuple(nb::none(), nb::dict());
            const auto state = nb::cast<nb::dict>(object_of(loaded->client_state));
            const nb::object kept = state.attr("pop")(kScheduler, nb::none());
            const nb::object scheduler = self.callers_scheduler;
            if (lr_scheduler_states && !module_only && nb::hasattr(scheduler, "load_state_dict")) {
              WEFT_CHECK(!kept.is_none(),
                         "engine: {}: expected the state of the lr_scheduler, a {}", loaded->path,
                         type_of(scheduler));
              scheduler.attr("load_state_dict")(kept);
            }
            return nb::make_tuple(loaded->path, state);
          },
          "load_dir"_a, "tag"_a = nb::none(), "load_module_strict"_a = true,
          "load_optimizer_states"_a = true, "load_lr_scheduler_states"_a = true,
          "load_module_only"_a = false,
          "Goes on from a checkpoint, without a tag the latest; returns its path and the "
          "client_state, or (None, {}) where there is none. load_optimizer_states=False: the "
          "optimizer and the loss scale stay as they are. load_lr_scheduler_states=False: the "
          "scheduler goes on where it is, and sets the rates anew at its next step. "
          "load_module_only: the model alone; counts of steps stay, too. "
          "load_module_strict: True alone.");
  m.def(
      "initialize", &initialize, "args"_a = nb::none(), "model"_a = nb::none(),
      "optimizer"_a = nb::none(), "model_parameters"_a = nb::none(), "training_data"_a = nb::none(),
      "lr_scheduler"_a = nb::none(), "config"_a = nb::none(), "config_params"_a = nb::none(),
      nb::kw_only(), "device"_a = "cpu",
      "deepspeed.initialize: a tuple (engine, optimizer, training_dataloader, lr_scheduler) of a "
      "model and DeepSpeed's config, a dict or a file's path, as config, config_params or "
      "args.deepspeed_config. optimizer: instead of the config's. model_parameters: those that the "
      "config's optimizer trains, tensors of the model, with or without their names, or groups; by "
      "default all. training_data: a data set, with a length and items, of which the loader makes "
      "shuffled micro-batches, or an iterable of micro-batches; without it the loader is None. "
      "lr_scheduler: a function of the step, a factor on the learning rate, or a Scheduler of "
      "`optimizer`; the tuple has that, or the Scheduler of the function or of the config's "
      "schedule, None without any. engine.step() steps it. device: cpu or cuda. Raises TypeError "
      "without a model or a config, Error for a config that is not DeepSpeed's.");
}

}  // namespace weft::python
