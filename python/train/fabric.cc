// weft.train.Fabric, its strategies' options, and loggers.
#include "python/train/fabric.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/trampoline.h>

#include "data/tensors/tensor_dataset.h"
#include "dist/strategy/settings.h"
#include "io/nearest.h"
#include "nn/meta.h"
#include "optim/clip.h"
#include "optim/schedule.h"
#include "python/bindings.h"
#include "python/containers.h"
#include "python/docstrings.h"
#include "python/iteration.h"
#include "python/model_call.h"
#include "python/modules.h"
#include "python/scope.h"
#include "python/train/batches.h"
#include "python/train/collectives.h"
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
  using Argument = std::optional<nb::object>;
  static Argument to_python(const std::vector<std::shared_ptr<train::FabricCallback>>&) {
    return {};
  }
  static std::vector<std::shared_ptr<train::FabricCallback>> from_python(const Argument& given) {
    std::vector<std::shared_ptr<train::FabricCallback>> callbacks;
    const auto add = [&](nb::handle object) {
      callbacks.push_back(std::make_shared<PythonHooks>(nb::borrow(object)));
    };
    if (!given) return callbacks;
    if (nb::isinstance<nb::list>(*given) || nb::isinstance<nb::tuple>(*given)) {
      for (nb::handle object : *given) add(object);
    } else {
      add(*given);
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

/// The options with what the environment says of them, of a Fabric or a Trainer.
nb::dict from_environment(const nb::kwargs& given) {
  train::FabricOptions options;
  if (given.contains("strategy")) {
    using Strategy = Conversion<dist::StrategyOptions>;
    options.strategy = Strategy::from_python(nb::cast<Strategy::Argument>(given["strategy"]));
  }
  options = train::from_environment(options);
  nb::dict all;
  all.update(given);
  const auto is_set = [](const char* variable) {
    const char* const text = std::getenv(variable);
    return text && *text;
  };
  const auto put = [&](const char* variable, const char* name, const auto& value) {
    if (is_set(variable)) all[name] = value;
  };
  const train::Devices& devices = options.devices;
  if (is_set("WEFT_DEVICE")) all.attr("pop")("accelerator", nb::none());
  put("WEFT_DEVICE", "device", options.device);
  put("WEFT_DEVICES", "devices",
      !devices.numbers.empty() ? nb::cast(devices.numbers)
      : devices.count == 0     ? nb::cast("auto")
                               : nb::cast(devices.count));
  put("WEFT_NUM_NODES", "num_nodes", options.num_nodes);
  put("WEFT_PRECISION", "precision", options.precision);
  put("WEFT_STRATEGY", "strategy", options.strategy);
  put("WEFT_STATE_DICT_TYPE", "state_dict_type", options.state_dict_type);
  return all;
}

/// The optimizer's gradients, by the one limit that is given; the norm that they had.
std::optional<double> clip(Fabric& fabric, optim::Optimizer& optimizer,
                           std::optional<double> max_norm, std::optional<double> clip_val) {
  if (max_norm.has_value() == clip_val.has_value()) {
    throw nb::type_error("clip_gradients: expected one of max_norm and clip_val");
  }
  const nb::gil_scoped_release unlocked;
  if (max_norm) return fabric.clip_gradients(optimizer, *max_norm);
  WEFT_CHECK(optimizer.has_route(), "fabric: clip_gradients() of an optimizer that was not set up");
  optim::clip_grad_value(optimizer.parameters(), *clip_val);
  return {};
}

/// A step's micro-batches: pairs of an input and a function of the output, asked for one by one.
/// The caller outlives them, and has let go of the interpreter's lock.
dist::MicroBatches micro_batches_of(const nb::sequence& pairs, bool accumulates,
                                    std::function<void()> after_each) {
  using Loss = std::function<nb::object(const Tensor&)>;
  const auto at = [&pairs](int64_t i) {
    const nb::gil_scoped_acquire locked;
    const nb::object pair = pairs[i];
    Loss loss;
    const bool is_pair = nb::isinstance<nb::tuple>(pair) && nb::len(pair) == 2 &&
                         nb::isinstance<Tensor>(pair[0]) && nb::try_cast(pair[1], loss);
    if (!is_pair) {
      throw nb::type_error(fmt::format("run: micro-batch {}: expected a tuple of a tensor and a "
                                       "function of the model's output, got {}",
                                       i, nb::repr(pair).c_str())
                               .c_str());
    }
    return dist::MicroBatch{
        .input = nb::cast<Tensor>(pair[0]), .loss = [loss, i](const Tensor& output) {
          const nb::gil_scoped_acquire locked;
          const nb::object value = loss(output);
          if (nb::isinstance<Tensor>(value)) return nb::cast<Tensor>(value);
          throw nb::type_error(
              fmt::format("run: micro-batch {}: expected a tensor from the loss, got a {}", i,
                          type_of(value))
                  .c_str());
        }};
  };
  return {.count = static_cast<int64_t>(nb::len(pairs)),
          .at = at,
          .accumulates = accumulates,
          .after_each = std::move(after_each)};
}

/// A model, or what a batch may be, on the Fabric's device.
nb::object to_device_of(const Fabric& fabric, nb::handle object) {
  if (nb::isinstance<nn::Module>(object)) {
    nb::cast<nn::Module&>(object).to(fabric.device());
    return nb::borrow(object);
  }
  return with_each_tensor(object, [&](Tensor& x) { x = ops::to(x, fabric.device()); });
}

/// A model, if there is one, and optimizers.
void set_up(Fabric& fabric, nb::handle model, const nb::tuple& optimizers) {
  std::vector<optim::Optimizer*> all;
  for (nb::handle optimizer : optimizers) {
    if (!nb::isinstance<optim::Optimizer>(optimizer)) {
      throw nb::type_error(
          fmt::format("setup: expected an optimizer, got {}", type_of(optimizer)).c_str());
    }
    all.push_back(nb::cast<optim::Optimizer*>(optimizer));
  }
  auto* const module = model ? nb::cast<nn::Module*>(model) : nullptr;
  const nb::gil_scoped_release unlocked;
  if (module) fabric.setup_model(*module, with_replica(module->structure(), *module));
  for (optim::Optimizer* const optimizer : all) fabric.setup_optimizer(*optimizer);
}

/// Backward passes and steps.
void bind_steps(nb::module_& m, nb::class_<Fabric>& fabric) {
  nb::class_<data::LoaderWatch>(m, "LatestBatch", "What a loader says of the batch it gave last.")
      .def_ro("fillers", &data::LoaderWatch::fillers,
              "Rows at its end that other ranks have as well.")
      .def_ro("is_last", &data::LoaderWatch::is_last, "Whether it is its epoch's last.");
  fabric
      .def("backward", &Fabric::backward, "loss"_a, Unlocked(),
           "The gradients of the mean of all ranks' losses.")
      .def(
          "accumulate",
          [](Fabric& self, const nb::args& models) {
            std::vector<nn::Module*> all;
            for (nb::handle model : models) {
              if (!nb::isinstance<nn::Module>(model)) {
                throw nb::type_error(
                    fmt::format("accumulate: expected a model, got {}", type_of(model)).c_str());
              }
              all.push_back(nb::cast<nn::Module*>(model));
            }
            return std::make_unique<HeldContext>([&self, all] { return self.accumulate(all); });
          },
          "models"_a, nb::keep_alive<0, 1>(), nb::keep_alive<0, 2>(),
          "`with fabric.accumulate(model):` around the body of a loop of which "
          "gradient_accumulation_steps rounds are one step of the model, or of several. Gradients "
          "of other models are not divided, and their optimizers step.")
      .def(
          "no_backward_sync",
          [](Fabric& self, nn::Module& model, bool enabled) {
            return std::make_unique<HeldContext>(
                [&self, &model, enabled] { return self.no_backward_sync(model, enabled); });
          },
          "model"_a, "enabled"_a = true, nb::keep_alive<0, 1>(), nb::keep_alive<0, 2>(),
          "`with` it, backward() leaves the model's gradients on their rank, where they add up.")
      .def_prop_ro("sync_gradients", &Fabric::sync_gradients,
                   "False in a round of accumulate() that ends no step.")
      .def_prop_ro(
          "latest_batch", [](const Fabric& self) { return self.latest_batch(); },
          "Of the batch that a loader of this Fabric gave last: a LatestBatch.")
      .def(
          "run",
          [](Fabric& self, const nb::sequence& batches, bool accumulates,
             const std::optional<std::function<void()>>& after_each) {
            const auto all = micro_batches_of(batches, accumulates, after_each.value_or(nullptr));
            const nb::gil_scoped_release unlocked;
            self.run(all);
          },
          "batches"_a, "accumulates"_a = true, "after_each"_a = nb::none(),
          "Forward and backward of a step's micro-batches of the only model, in the strategy's "
          "order, which alone is a pipeline's schedule. batches: tuples (input, loss), each asked "
          "for once, just before its forward; loss(output) is its share of the whole batch's loss, "
          "scaled(). accumulates: gradients stay on their rank until the last, and add up; else "
          "they are reduced after each, and after_each() takes them away.")
      .def("scaled", &Fabric::scaled, "loss"_a, Unlocked(),
           "The loss times the loss scale of 16-mixed: for run().")
      .def("unscale", nb::overload_cast<optim::Optimizer&>(&Fabric::unscale), "optimizer"_a,
           Unlocked(),
           "In 16-mixed divides the gradients by the loss scale, once a step, and returns the norm "
           "of this rank's; else 0. Clipping and step() do it where it was not done.")
      .def(
          "clip_gradients",
          [](Fabric& self, optim::Optimizer& optimizer, std::optional<double> max_norm,
             std::optional<double> clip_val) { return clip(self, optimizer, max_norm, clip_val); },
          "optimizer"_a, "max_norm"_a = nb::none(), "clip_val"_a = nb::none(),
          "Scales the gradients of the optimizer's parameters so that their norm over all ranks is "
          "at most max_norm, and returns the norm that they had; or clamps each element to "
          "[-clip_val, clip_val]. In 16-mixed it divides them by the loss scale first.")
      .def(
          "clip_gradients",
          [](Fabric& self, nn::Module& model, optim::Optimizer& optimizer,
             std::optional<double> clip_val, std::optional<double> max_norm) {
            WEFT_CHECK(Fabric::of(model) == &self,
                       "fabric: clip_gradients() of a model that was not set up");
            return clip(self, optimizer, max_norm, clip_val);
          },
          "model"_a, "optimizer"_a, "clip_val"_a = nb::none(), "max_norm"_a = nb::none(),
          "The same in Lightning's order: the gradients are those of the optimizer's parameters.")
      .def(
          "step",
          [](Fabric& self, optim::Optimizer& optimizer, double gradient_scale) {
            return self.step(optimizer, gradient_scale);
          },
          "optimizer"_a, "gradient_scale"_a = 1.0, Unlocked(),
          "False, on all ranks, when a gradient was infinite on one and the step was skipped, "
          "and in a round of accumulate() that ends no step.")
      .def("skip_step", &Fabric::skip_step, Unlocked(),
           "Instead of step() of the only optimizer: nothing changes.")
      .def_prop_ro("scaler", &Fabric::scaler, nb::rv_policy::reference_internal,
                   "Of 16-mixed, a GradScaler; in other precisions it is not enabled. save() and "
                   "load() take it.");
}

void bind_logging(nb::class_<Fabric>& fabric) {
  const auto loggers = [](const Fabric& self) { return self.options().loggers; };
  fabric
      .def(
          "log",
          [](Fabric& self, const std::string& name, const Operand& value,
             std::optional<int64_t> step) { self.log(name, number_of(value), step); },
          "name"_a, "value"_a, "step"_a = nb::none(),
          "A number to each of the loggers, on rank 0 alone. Without a step, 0 at first, then one "
          "more than the call before: calls of log() and log_dict() are counted, not the steps of "
          "an optimizer.")
      .def(
          "log_dict",
          [](Fabric& self, const nb::dict& metrics, std::optional<int64_t> step) {
            self.log_dict(values_of(metrics), step);
          },
          "metrics"_a, "step"_a = nb::none(), "The same of several, under one step.")
      .def_prop_ro("loggers", loggers)
      .def_prop_ro(
          "logger",
          [](const Fabric& self) {
            const auto& all = self.options().loggers;
            return all.empty() ? nullptr : all[0];
          },
          "The first of the loggers; None without any.");
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
      "A plain training loop on one device or many, in a precision and by a strategy that its "
      "options name.\n\ndevice: \"cpu\", \"cuda\", or of a single one \"cuda:1\"; accelerator: "
      "the same in Lightning's words, also \"gpu\" and \"auto\". devices: how many, \"auto\" or "
      "-1, or a list of GPUs; num_nodes: hosts with so many each. precision: \"bf16-mixed\" or "
      "by weft train's names, also 16, 32, 64. strategy: a name or StrategyOptions. collectives: "
      "\"nccl\" or \"exact\".\nOf 16-mixed, loss_scale: \"dynamic\", \"none\", or a number that "
      "stays; a dynamic one begins at initial_loss_scale, grows after loss_scale_window steps "
      "without an infinity by loss_scale_growth, and after loss_scale_hysteresis infinities "
      "shrinks by loss_scale_backoff, to no less than min_loss_scale.\nOf fp8, fp8_scaling: "
      "\"current\" or \"delayed\", by the last fp8_history steps; fp8_margin: powers of two kept "
      "free above the largest magnitude; fp8_level: \"O1\" to \"O3\". accumulation: whose matrix "
      "products. tf32_rounding: \"truncate\" or \"nearest\".\ngradient_accumulation_steps: "
      "rounds of accumulate() in a step. split_batches: a loader's batch is that of all devices, "
      "not of each. state_dict_type: of save(), \"full\" or \"sharded\". loggers, callbacks: one "
      "or several, of log() and call().");
  using O = train::FabricOptions;
  define_init<O>(
      fabric,
      std::tuple_cat(shared_fields(),
                     std::tuple(Field{"gradient_accumulation_steps", &O::accumulate},
                                Field{"loggers", &O::loggers}, Field{"callbacks", &O::callbacks})));
  bind_collectives(m, fabric);
  bind_steps(m, fabric);
  bind_logging(fabric);
  m.def("from_environment", &from_environment, "options"_a,
        "The options of a Fabric or a Trainer, a dict, with what WEFT_DEVICE, WEFT_DEVICES, "
        "WEFT_NUM_NODES, WEFT_PRECISION, WEFT_STRATEGY and WEFT_STATE_DICT_TYPE say of them: "
        "Fabric(**from_environment(devices=2)). Throws Error naming a variable that cannot be "
        "read.");
  fabric.def("launch", &launch<Fabric>, kLaunchText)
      .def_prop_ro("device", &Fabric::device)
      .def_prop_ro("global_rank", &Fabric::rank)
      .def_prop_ro("local_rank", &Fabric::local_rank, "Among the ranks of this host.")
      .def_prop_ro("world_size", &Fabric::size)
      .def_prop_ro("is_global_zero", &Fabric::is_main)
      .def_prop_ro("data_size", &Fabric::data_size, "Ranks that take different samples.")
      .def_prop_ro("data_rank", &Fabric::data_rank, "This one's number among them.")
      .def_prop_ro("data_devices", &Fabric::data_devices,
                   "Devices that take different samples, threads of dp among them.")
      .def(
          "init_module",
          [](const Fabric&, bool empty_init) {
            return std::make_unique<HeldContext>([empty_init]() -> std::shared_ptr<void> {
              return empty_init ? std::make_shared<nn::MetaScope>() : nullptr;
            });
          },
          "empty_init"_a = false,
          "`with fabric.init_module():` around what makes a model, which setup() moves to the "
          "device and casts. empty_init: without memory, which setup() takes, for weights that "
          "load() is to fill.")
      .def("to_device", &to_device_of, "obj"_a,
           "A model, which is moved and returned, or tensors, in tuples, lists and dicts, on the "
           "Fabric's device.")
      .def(
          "autocast",
          [](Fabric& self) {
            return std::make_unique<HeldContext>([&self] {
              return std::shared_ptr<void>(new train::PrecisionScope(self.autocast()));
            });
          },
          nb::keep_alive<0, 1>(),
          "`with fabric.autocast():` operations outside of a model run in the precision; model(x) "
          "and backward() do by themselves.")
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
          [](Fabric& self, nn::Module& model, const nb::callable& function) {
            return forward_of(self, model, function);
          },
          "model"_a, "function"_a,
          "What function() returns, a tensor, or tensors in tuples, lists and dicts, called as "
          "model(x) would be: for methods of a model that was set up. An Error under dp and "
          "pipeline, which run model(x) alone.")
      .def(
          "forward",
          [](Fabric& self, nb::handle_t<nn::Module> model, const nb::args& arguments,
             const nb::kwargs& options) { return forward_of(self, model, arguments, options); },
          "model"_a, "arguments"_a, "options"_a,
          "model(x), or with other arguments, of a model that was set up; with a parallel head the "
          "logits of some classes.")
      .def(
          "cross_entropy",
          [](Fabric& self, const Tensor& logits, const Tensor& labels, double label_smoothing) {
            return self.cross_entropy(logits, labels, {.label_smoothing = label_smoothing});
          },
          "logits"_a, "labels"_a, "label_smoothing"_a = 0.0, Unlocked())
      .def(
          "call",
          [](const Fabric& self, const std::string& hook_name, const nb::args& arguments,
             const nb::kwargs& options) {
            self.call(&PythonHooks::call, hook_name, arguments, options);
          },
          "hook_name"_a, "arguments"_a, "options"_a,
          "Calls the method of that name of those callbacks that have it: call(\"on_epoch_end\", "
          "epoch=3).")
      .def(
          "setup_dataloader",
          [](const Fabric& self, nb::handle_t<data::Loader> loader, bool use_distributed_sampler) {
            self.setup_dataloader(nb::cast<data::Loader&>(loader), use_distributed_sampler);
            return nb::borrow(loader);
          },
          "loader"_a, "use_distributed_sampler"_a = true,
          "From here on the loader gives this rank's share. use_distributed_sampler=False: all of "
          "it, on this rank's device, for a loader that knows of the ranks by itself.")
      .def(
          "setup_dataloader",
          [](const Fabric& self, data::TensorLoader& loader, bool use_distributed_sampler) {
            return std::unique_ptr<TensorShares>(
                new TensorShares(self.share(loader, use_distributed_sampler)));
          },
          "loader"_a, "use_distributed_sampler"_a = true, nb::keep_alive<0, 1>(),
          nb::keep_alive<0, 2>(), "An iterator of this rank's share.")
      .def(
          "setup_dataloader",
          [](nb::handle_t<Fabric> self, nb::handle loader, bool use_distributed_sampler) {
            return share_batches(self, loader, use_distributed_sampler);
          },
          "loader"_a, "use_distributed_sampler"_a = true,
          "An iterable of this rank's share of any iterable's batches: tensors and NumPy's arrays, "
          "in tuples, lists and dicts, of which a first dimension counts the samples; other leaves "
          "stay as they are. It has to give the same on every rank. Each batch needs memory of its "
          "own: one is read ahead.")
      .def(
          "setup_dataloaders",
          [](nb::handle_t<Fabric> self, const nb::args& loaders, bool use_distributed_sampler) {
            nb::list all;
            for (nb::handle loader : loaders) {
              all.append(self.attr("setup_dataloader")(loader, use_distributed_sampler));
            }
            return one_or_all(nb::tuple(all));
          },
          "loaders"_a, "use_distributed_sampler"_a = true, "setup_dataloader() of each.")
      .def(
          "save",
          [](Fabric& self, const io::Path& path, const std::optional<nb::dict>& state) {
            std::optional<States> states;
            if (state) states.emplace(*state);
            const nb::gil_scoped_release unlocked;
            states ? self.save(path.string(), states->get()) : self.save(path.string());
          },
          "path"_a, "state"_a = nb::none(),
          "The whole model as a safetensors file, written by rank 0; or any state, a dict of "
          "models, optimizers, schedulers, scalers, loaders, tensors, dicts of them, numbers, what "
          "JSON holds, and objects with state_dict() and load_state_dict(). Every rank calls it. A "
          "TypeError names the key and the type of what cannot be saved.")
      .def(
          "async_save",
          [](Fabric& self, const io::Path& path, const nb::dict& state,
             const std::optional<std::function<void()>>& then) {
            const States states(state);
            const nb::gil_scoped_release unlocked;
            self.async_save(path.string(), states.get(), then.value_or(nullptr));
          },
          "path"_a, "state"_a, "then"_a = nb::none(),
          "save() of a state; a sharded one is copied, and written while training goes on. It is "
          "complete after a step of an optimizer, the next save or wait_for_save(), whatever comes "
          "first, which raises what went wrong. Rank 0 then calls then().")
      .def("wait_for_save", &Fabric::wait_for_save, Unlocked(), "Until async_save() is complete.")
      .def(
          "load",
          [](Fabric& self, const io::Path& path, const std::optional<nb::dict>& state) {
            std::vector<std::string> left;
            std::optional<States> states;
            const auto ask = [&](const Fabric::StateKinds& kinds) {
              const nb::gil_scoped_acquire locked;
              return states.emplace(*state, kinds).get();
            };
            {
              const nb::gil_scoped_release unlocked;
              if (state) left = self.load_by_kinds(path.string(), ask);
              if (!state) self.load(path.string());
            }
            return states ? states->finish(std::move(left)) : left;
          },
          "path"_a, "state"_a = nb::none(),
          "What save() has left, into the objects of the dict, by load_state_dict() of those that "
          "are not Weft's own; its other values are replaced. Returns the names in the file that "
          "were not asked for.")
      .def(
          "seed_everything",
          [](const Fabric& self, uint64_t seed, bool) { self.seed_everything(seed); }, "seed"_a,
          "workers"_a = true,
          "Weights of all ranks from one seed, dropout of each from its own stream: call it first. "
          "workers: a loader draws by its own seed, epoch and sample in any case.")
      .def("print", [](const Fabric& self, const nb::args& arguments, const nb::kwargs& options) {
        if (self.is_main()) nb::module_::import_("builtins").attr("print")(*arguments, **options);
      });
}

}  // namespace weft::python
