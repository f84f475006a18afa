// weft.train.Fabric, its strategies' options, and loggers.
#include "python/train/fabric.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/trampoline.h>

#include "data/tensors/tensor_dataset.h"
#include "dist/strategy/settings.h"
#include "io/nearest.h"
#include "optim/schedule.h"
#include "python/bindings.h"
#include "python/docstrings.h"
#include "python/iteration.h"
#include "python/modules.h"
#include "python/scope.h"
#include "python/train/batches.h"
#include "python/train/states.h"
#include "train/metrics/logger.h"

namespace weft::python {

/// A callback of Fabric's is any object.
struct PythonHooks : train::FabricCallback {
  explicit PythonHooks(nb::object object) : object(std::move(object)) {}
  void call(const std::string& hook, const nb::args& arguments, const nb::kwargs& options) {
    if (nb::hasattr(object, hook.c_str())) object.attr(hook.c_str())(*arguments, **options);
  }
  const nb::object object;
};

template <>
struct Conversion<std::vector<std::shared_ptr<train::FabricCallback>>> {
  using Argument = std::vector<nb::object>;
  static Argument to_python(const std::vector<std::shared_ptr<train::FabricCallback>>&) {
    return {};
  }
  static std::vector<std::shared_ptr<train::FabricCallback>> from_python(const Argument& objects) {
    std::vector<std::shared_ptr<train::FabricCallback>> callbacks;
    for (const nb::object& object : objects) {
      callbacks.push_back(std::make_shared<PythonHooks>(object));
    }
    return callbacks;
  }
};

namespace {

using train::Fabric;
using train::Logger;
using train::NamedValues;
using TensorShares = train::SharedLoader<data::TensorLoader>;

nb::dict dict_of(const NamedValues& values) {
  nb::dict dict;
  for (const auto& [name, value] : values) dict[name.c_str()] = value;
  return dict;
}

double number_of(const Operand& value) {
  return value.kind == Operand::Kind::kTensor ? value.tensor.item() : value.as_double();
}

NamedValues values_of(const nb::dict& dict) {
  NamedValues values;
  for (const auto& [name, value] : dict) {
    values.emplace_back(nb::cast<std::string>(name), number_of(nb::cast<Operand>(value)));
  }
  return values;
}

/// A logger that Python may derive from.
template <class Base>
struct DerivableLogger : Base {
  NB_TRAMPOLINE(Base);
  void begin(int64_t step) override { NB_OVERRIDE(begin, step); }
  void log_metrics(int64_t step, const NamedValues& values) override {
    constexpr const char* kName = "log_metrics";
    const nb::detail::ticket ticket(nb_trampoline, kName, nb::detail::str_hash(kName),
                                    std::is_abstract_v<Base>);
    if (!ticket.key.is_valid()) {
      if constexpr (!std::is_abstract_v<Base>) Base::log_metrics(step, values);
      return;
    }
    nb_trampoline.base().attr(ticket.key)(dict_of(values), step);
  }
  void end_epoch(int64_t epoch, int64_t step, const NamedValues& metrics) override {
    constexpr const char* kName = "end_epoch";
    const nb::detail::ticket ticket(nb_trampoline, kName, nb::detail::str_hash(kName), false);
    if (!ticket.key.is_valid()) return Base::end_epoch(epoch, step, metrics);
    nb_trampoline.base().attr(ticket.key)(epoch, step, dict_of(metrics));
  }
  void finish() override { NB_OVERRIDE(finish); }
};

void bind_loggers(nb::module_ m) {
  nb::class_<Logger, DerivableLogger<Logger>>(
      m, "Logger",
      "Where the figures of a Fabric or a Trainer go, on rank 0. Subclasses define "
      "log_metrics(metrics, step).")
      .def(nb::init<>())
      .def("begin", &Logger::begin, "step"_a, docs("train::Logger::begin"))
      .def(
          "log_metrics",
          [](Logger& self, const nb::dict& metrics, int64_t step) {
            self.log_metrics(step, values_of(metrics));
          },
          "metrics"_a, "step"_a, docs("train::Logger::log_metrics"))
      .def(
          "end_epoch",
          [](Logger& self, int64_t epoch, int64_t step, const nb::dict& metrics) {
            self.end_epoch(epoch, step, values_of(metrics));
          },
          "epoch"_a, "step"_a, "metrics"_a, docs("train::Logger::end_epoch"))
      .def("finish", &Logger::finish, docs("train::Logger::finish"));
  nb::class_<train::MetricsLogger, Logger, DerivableLogger<train::MetricsLogger>>(
      m, "MetricsLogger", "metrics.jsonl and metrics.csv in a directory.")
      .def(nb::init<io::Path>(), "directory"_a);
  nb::class_<train::TensorBoardLogger, Logger, DerivableLogger<train::TensorBoardLogger>>(
      m, "TensorBoardLogger", "Curves for TensorBoard in a directory.")
      .def(nb::init<io::Path>(), "directory"_a);
}

/// Flags with underscores.
std::string name_of(const dist::SettingText& text) {
  std::string name = text.flag;
  std::ranges::replace(name, '-', '_');
  return name;
}

/// Of an option that is chosen by name, which for_each_setting() leaves out.
constexpr const char* kSchedule = "schedule";
constexpr const char* kPipelineSchedule = "pipeline_schedule";  // as on the command line

dist::StrategyOptions strategy_options(const std::string& name, const nb::kwargs& settings) {
  dist::StrategyOptions options = {.name = name};
  for (const auto& [key, value] : settings) {
    const auto given = nb::cast<std::string>(key);
    const auto read = [&, v = nb::handle(value)]<class T>(T& member) {
      if (nb::try_cast(v, member)) return;
      throw nb::type_error(fmt::format("StrategyOptions: {}: expected {}, got {}", given,
                                       nb::type_name(nb::cast(T()).type()).c_str(),
                                       nb::repr(v).c_str())
                               .c_str());
    };
    std::vector<std::string> known = {kSchedule, kPipelineSchedule};
    if (given == kSchedule || given == kPipelineSchedule) {
      std::string schedule;
      read(schedule);
      options.schedule = dist::parse_schedule(schedule);
    }
    dist::for_each_setting([&](const dist::SettingText& text, auto member) {
      known.push_back(name_of(text));
      if (known.back() == given) read(options.*member);
    });
    if (std::ranges::count(known, given) == 0) {
      throw nb::type_error(fmt::format("StrategyOptions: unknown setting \"{}\"{}", given,
                                       io::did_you_mean(given, known))
                               .c_str());
    }
  }
  return options;
}

void bind_strategy_options(nb::module_ m) {
  using dist::StrategyOptions;
  nb::class_<StrategyOptions> bound(
      m, "StrategyOptions",
      "A strategy by its name and what else is said of it: StrategyOptions(\"fsdp\", "
      "shard_grad_op=True). The settings are its attributes.");
  bound
      .def(
          "__init__",
          [](StrategyOptions* self, const std::string& name, const nb::kwargs& settings) {
            new (self) StrategyOptions(strategy_options(name, settings));
          },
          "name"_a = "auto", "settings"_a)
      .def_rw("name", &StrategyOptions::name);
  dist::for_each_setting([&](const dist::SettingText& text, auto member) {
    bound.def_rw(name_of(text).c_str(), member, text.help);
  });
  for (const char* schedule : {kSchedule, kPipelineSchedule}) {
    bound.def_prop_rw(
        schedule, [](const StrategyOptions& self) { return dist::name(self.schedule); },
        [](StrategyOptions& self, const std::string& name) {
          self.schedule = dist::parse_schedule(name);
        },
        "Order in which a pipeline's stages take micro-batches: \"1f1b\" or \"gpipe\". Both names "
        "are of one setting.");
  }
  bound.def("__repr__", [](const StrategyOptions& self) {
    std::string text = nb::cast<std::string>(nb::repr(nb::cast(self.name)));
    const StrategyOptions defaults;
    dist::for_each_setting([&](const dist::SettingText& setting, auto member) {
      if (self.*member != defaults.*member) {
        text += fmt::format(", {}={}", name_of(setting), nb::repr(nb::cast(self.*member)).c_str());
      }
    });
    if (self.schedule != defaults.schedule) {
      text += fmt::format(", {}='{}'", kSchedule, dist::name(self.schedule));
    }
    return fmt::format("StrategyOptions({})", text);
  });
}

/// What begin() returns, for as long as it lives.
struct Held {
  explicit Held(const std::function<std::shared_ptr<void>()>& begin) : held(begin()) {}
  std::shared_ptr<void> held;
};
using HeldContext = Context<Held, std::function<std::shared_ptr<void>()>>;

/// One object as itself, several as a tuple.
nb::object one_or_all(const nb::tuple& objects) {
  return objects.size() == 1 ? nb::object(objects[0]) : nb::object(objects);
}

/// What a function of no arguments returns, called without the interpreter's lock.
Tensor tensor_of(const nb::callable& function) {
  const nb::gil_scoped_acquire locked;
  const nb::object result = function();
  if (nb::isinstance<Tensor>(result)) return nb::cast<Tensor>(result);
  throw nb::type_error(fmt::format("forward: expected a tensor from the function, got a {}",
                                   nb::type_name(result.type()).c_str())
                           .c_str());
}

/// A model, if there is one, and optimizers.
void set_up(Fabric& fabric, nb::handle model, const nb::tuple& optimizers) {
  std::vector<optim::Optimizer*> all;
  for (nb::handle optimizer : optimizers) {
    if (!nb::isinstance<optim::Optimizer>(optimizer)) {
      throw nb::type_error(fmt::format("setup: expected an optimizer, got {}",
                                       nb::type_name(optimizer.type()).c_str())
                               .c_str());
    }
    all.push_back(nb::cast<optim::Optimizer*>(optimizer));
  }
  auto* const module = model ? nb::cast<nn::Module*>(model) : nullptr;
  const nb::gil_scoped_release unlocked;
  if (module) fabric.setup_model(*module, with_replica(module->structure(), *module));
  for (optim::Optimizer* const optimizer : all) fabric.setup_optimizer(*optimizer);
}

}  // namespace

void bind_fabric(nb::module_ m) {
  bind_loggers(m);
  bind_strategy_options(m);
  bind_context<HeldContext>(m, "Held", "What accumulate() and no_backward_sync() return.");
  bind_shared_batches(m);
  nb::class_<TensorShares>(m, "SharedTensorLoader", "This rank's part of a TensorLoader.")
      .def("__iter__", [](nb::handle_t<TensorShares> self) { return nb::borrow(self); })
      .def("__next__", [](TensorShares& self) { return nb::tuple(nb::cast(next_of(self))); });
  nb::class_<Fabric> fabric(
      m, "Fabric",
      "A plain training loop on one device or many, in a precision and by a strategy "
      "that its options name.");
  using O = train::FabricOptions;
  define_init<O>(
      fabric,
      std::tuple_cat(shared_fields(),
                     std::tuple(Field{"gradient_accumulation_steps", &O::accumulate},
                                Field{"loggers", &O::loggers}, Field{"callbacks", &O::callbacks})));
  fabric.def("launch", &launch<Fabric>, kLaunchText)
      .def_prop_ro("device", &Fabric::device)
      .def_prop_ro("global_rank", &Fabric::rank)
      .def_prop_ro("world_size", &Fabric::size)
      .def_prop_ro("is_global_zero", &Fabric::is_main)
      .def(
          "setup",
          [](Fabric& self, nb::handle_t<nn::Module> model, const nb::args& optimizers) {
            set_up(self, model, optimizers);
            return one_or_all(nb::tuple(nb::make_tuple(model) + optimizers));
          },
          "model"_a, "optimizers"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
          "Shards a model and its optimizers, which have not stepped yet, as the strategy says. "
          "From there on model(x), optimizer.step(), zero_grad() and clip_grad_norm_() know of it. "
          "Returns what it was given.")
      .def(
          "setup_module",
          [](Fabric& self, nb::handle_t<nn::Module> model) {
            set_up(self, model, nb::tuple());
            return nb::borrow(model);
          },
          "model"_a, nb::keep_alive<1, 2>(),
          "The model alone, before setup_optimizers(). Returns it.")
      .def(
          "setup_optimizers",
          [](Fabric& self, const nb::args& optimizers) {
            set_up(self, nb::handle(), optimizers);
            return one_or_all(optimizers);
          },
          "optimizers"_a, nb::keep_alive<1, 2>(),
          "Optimizers of parameters of models that were set up. Returns them.")
      .def(
          "forward", [](Fabric& self, const Tensor& x) { return self.forward(x); }, "x"_a,
          Unlocked(), "The only model on x in the precision asked for, as model(x).")
      .def(
          "forward",
          [](Fabric& self, nn::Module& model, const Tensor& x) { return self.forward(model, x); },
          "model"_a, "x"_a, Unlocked(), "A model that was set up, on x.")
      .def(
          "forward",
          [](Fabric& self, nn::Module& model, const nb::callable& function) {
            const nb::gil_scoped_release unlocked;
            return self.forward(model,
                                std::function<Tensor()>([&] { return tensor_of(function); }));
          },
          "model"_a, "function"_a,
          "What function() returns, a tensor, called as model(x) would be: for methods of a model "
          "that was set up. An Error under dp and pipeline, which run model(x) alone.")
      .def(
          "cross_entropy",
          [](Fabric& self, const Tensor& logits, const Tensor& labels, double label_smoothing) {
            return self.cross_entropy(logits, labels, {.label_smoothing = label_smoothing});
          },
          "logits"_a, "labels"_a, "label_smoothing"_a = 0.0, Unlocked())
      .def("backward", &Fabric::backward, "loss"_a, Unlocked(),
           "The gradients of the mean of all ranks' losses.")
      .def(
          "accumulate",
          [](Fabric& self, nn::Module& model) {
            return std::make_unique<HeldContext>(
                [&self, &model] { return self.accumulate(model); });
          },
          "model"_a, nb::keep_alive<0, 1>(), nb::keep_alive<0, 2>(),
          "`with fabric.accumulate(model):` around the body of a loop of which "
          "gradient_accumulation_steps rounds are one step.")
      .def(
          "no_backward_sync",
          [](Fabric& self, nn::Module& model, bool enabled) {
            return std::make_unique<HeldContext>(
                [&self, &model, enabled] { return self.no_backward_sync(model, enabled); });
          },
          "model"_a, "enabled"_a = true, nb::keep_alive<0, 1>(), nb::keep_alive<0, 2>(),
          "`with` it, backward() leaves the model's gradients on their rank, where they add up.")
      .def(
          "log",
          [](Fabric& self, const std::string& name, const Operand& value, int64_t step) {
            self.log(name, number_of(value), step);
          },
          "name"_a, "value"_a, "step"_a, "A number to each of the loggers, on rank 0 alone.")
      .def(
          "log_dict",
          [](Fabric& self, const nb::dict& metrics, int64_t step) {
            self.log_dict(values_of(metrics), step);
          },
          "metrics"_a, "step"_a, "The same of several.")
      .def(
          "call",
          [](const Fabric& self, const std::string& hook_name, const nb::args& arguments,
             const nb::kwargs& options) {
            self.call(&PythonHooks::call, hook_name, arguments, options);
          },
          "hook_name"_a, "arguments"_a, "options"_a,
          "Calls the method of that name of those callbacks that have it: call(\"on_epoch_end\", "
          "epoch=3).")
      .def("clip_gradients", &Fabric::clip_gradients, "optimizer"_a, "max_norm"_a, Unlocked())
      .def(
          "step",
          [](Fabric& self, optim::Optimizer& optimizer, double gradient_scale) {
            return self.step(optimizer, gradient_scale);
          },
          "optimizer"_a, "gradient_scale"_a = 1.0, Unlocked(),
          "False, on all ranks, when a gradient was infinite on one and the step was skipped.")
      .def(
          "all_reduce",
          [](const Fabric& self, const Tensor& x) {
            const Tensor mean = ops::clone(detach(x));
            self.all_reduce(mean);
            return mean;
          },
          "x"_a, Unlocked(), "The mean over all ranks.")
      .def("all_gather", &Fabric::all_gather, "x"_a, Unlocked(), "[ranks, ...]: every rank's x.")
      .def("broadcast", &Fabric::broadcast, "x"_a, "source"_a = 0, Unlocked(), "In place.")
      .def("barrier", &Fabric::barrier, Unlocked())
      .def_prop_ro("scaler", &Fabric::scaler, nb::rv_policy::reference_internal,
                   "Of 16-mixed, a GradScaler; in other precisions it is not enabled. save() and "
                   "load() take it.")
      .def("gather_for_metrics", &Fabric::gather_for_metrics, "x"_a, Unlocked(),
           "[samples, ...]: the rows of all ranks, each sample of a loader's batch once.")
      .def(
          "setup_dataloader",
          [](const Fabric& self, nb::handle_t<data::Loader> loader) {
            self.setup_dataloader(nb::cast<data::Loader&>(loader));
            return nb::borrow(loader);
          },
          "loader"_a, "From here on the loader gives this rank's share.")
      .def(
          "setup_dataloader",
          [](const Fabric& self, data::TensorLoader& loader) {
            return std::unique_ptr<TensorShares>(new TensorShares(self.share(loader)));
          },
          "loader"_a, nb::keep_alive<0, 1>(), nb::keep_alive<0, 2>(),
          "An iterator of this rank's share.")
      .def(
          "setup_dataloader",
          [](nb::handle_t<Fabric> self, nb::handle loader) { return share_batches(self, loader); },
          "loader"_a,
          "An iterable of this rank's share of any iterable's batches: tensors and NumPy's arrays, "
          "in tuples, lists and dicts, of which a first dimension counts the samples; other leaves "
          "stay as they are. It has to give the same on every rank. Each batch needs memory of its "
          "own: one is read ahead.")
      .def(
          "setup_dataloaders",
          [](nb::handle_t<Fabric> self, const nb::args& loaders) {
            nb::list all;
            for (nb::handle loader : loaders) all.append(self.attr("setup_dataloader")(loader));
            return one_or_all(nb::tuple(all));
          },
          "loaders"_a, "setup_dataloader() of each.")
      .def(
          "save",
          [](Fabric& self, const std::string& path, const std::optional<nb::dict>& state) {
            std::optional<States> states;
            if (state) states.emplace(*state);
            const nb::gil_scoped_release unlocked;
            states ? self.save(path, states->get()) : self.save(path);
          },
          "path"_a, "state"_a = nb::none(),
          "The whole model as a safetensors file, written by rank 0; or any state, a dict of "
          "models, optimizers, schedulers, scalers, loaders, tensors, dicts of them, numbers, what "
          "JSON holds, and objects with state_dict() and load_state_dict(). Every rank calls it. A "
          "TypeError names the key and the type of what cannot be saved.")
      .def(
          "load",
          [](Fabric& self, const std::string& path, const std::optional<nb::dict>& state) {
            std::vector<std::string> left;
            std::optional<States> states;
            const auto ask = [&](const Fabric::StateKinds& kinds) {
              const nb::gil_scoped_acquire locked;
              return states.emplace(*state, kinds).get();
            };
            {
              const nb::gil_scoped_release unlocked;
              if (state) left = self.load_by_kinds(path, ask);
              if (!state) self.load(path);
            }
            return states ? states->finish(std::move(left)) : left;
          },
          "path"_a, "state"_a = nb::none(),
          "What save() has left, into the objects of the dict, by load_state_dict() of those that "
          "are not Weft's own; its other values are replaced. Returns the names in the file that "
          "were not asked for.")
      .def("seed_everything", &Fabric::seed_everything, "seed"_a)
      .def("print", [](const Fabric& self, const nb::args& arguments, const nb::kwargs& options) {
        if (self.is_main()) nb::module_::import_("builtins").attr("print")(*arguments, **options);
      });
}

}  // namespace weft::python
