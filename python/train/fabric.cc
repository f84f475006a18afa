// weft.train.Fabric, its strategies' options, and loggers.
#include "python/train/fabric.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/trampoline.h>

#include <charconv>

#include "data/tensors/tensor_dataset.h"
#include "dist/comm/processes/join.h"
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
#include "train/pretrained/pretrained.h"

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

NamedValues values_of(const char* function, const nb::dict& dict) {
  NamedValues values;
  for (const auto& [name, value] : dict) {
    std::string text;
    if (!nb::try_cast(nb::handle(name), text)) {
      throw type_error("{}: expected texts as the names, got {}, a {}", function,
                       nb::repr(name).c_str(), type_of(name));
    }
    Operand number;
    if (!nb::try_cast(nb::handle(value), number)) {
      throw type_error("{}: \"{}\": expected a number, or a tensor of one element, got {}, a {}",
                       function, text, nb::repr(value).c_str(), type_of(value));
    }
    values.emplace_back(text, number_of(number));
  }
  return values;
}

/// A logger that Python may derive from.
template <class Base>
struct DerivableLogger : Base {
  NB_TRAMPOLINE(Base);
  void begin(int64_t step) override { NB_OVERRIDE(begin, step); }
  void log_metrics(int64_t step, const NamedValues& values) override {
    const Overridden own(nb_trampoline, "log_metrics");
    if constexpr (std::is_abstract_v<Base>) {
      WEFT_CHECK(own,
                 "logger: expected a method log_metrics(metrics, step), which the class {} "
                 "does not define",
                 name_of_class(nb_trampoline.base()));
    } else {
      if (!own) return Base::log_metrics(step, values);
    }
    own(dict_of(values), step);
  }
  void end_epoch(int64_t epoch, int64_t step, const NamedValues& metrics) override {
    const Overridden own(nb_trampoline, "end_epoch");
    if (!own) return Base::end_epoch(epoch, step, metrics);
    own(epoch, step, dict_of(metrics));
  }
  void finish() override {
    const nb::gil_scoped_acquire locked;
    const nb::error_scope pending;  // a Fabric may go while an exception is on its way
    NB_OVERRIDE(finish);
  }
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
            self.log_metrics(step, values_of("log_metrics", metrics));
          },
          "metrics"_a, "step"_a, docs("train::Logger::log_metrics"))
      .def(
          "end_epoch",
          [](Logger& self, int64_t epoch, int64_t step, const nb::dict& metrics) {
            self.end_epoch(epoch, step, values_of("end_epoch", metrics));
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
    const bool is_given = !value.is_none();
    const auto read = [&, v = nb::handle(value)]<class T>(T& member) {
      if (nb::try_cast(v, member)) return;
      throw type_error("StrategyOptions: {}: expected {}, got {}", given, type_of(nb::cast(T())),
                       nb::repr(v).c_str());
    };
    std::vector<std::string> known = {kSchedule, kPipelineSchedule};
    if (is_given && (given == kSchedule || given == kPipelineSchedule)) {
      std::string schedule;
      read(schedule);
      options.schedule = dist::parse_schedule(schedule);
    }
    dist::for_each_setting([&](const dist::SettingText& text, auto member) {
      known.push_back(name_of(text));
      if (is_given && known.back() == given) read(options.*member);
    });
    if (std::ranges::count(known, given) == 0) {
      throw type_error("StrategyOptions: unknown setting \"{}\"{}", given,
                       io::did_you_mean(given, known));
    }
  }
  return options;
}

void bind_strategy_options(nb::module_ m) {
  using dist::StrategyOptions;
  nb::class_<StrategyOptions> bound(
      m, "StrategyOptions",
      "A strategy by its name and what else is said of it: StrategyOptions(\"fsdp\", "
      "shard_grad_op=True). The settings are its attributes; None is a setting's default.");
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
  if (given.contains("strategy") && !given["strategy"].is_none()) {
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
                           std::optional<double> max_norm, std::optional<double> clip_val,
                           double norm_type, bool error_if_nonfinite) {
  if (max_norm.has_value() == clip_val.has_value()) {
    throw nb::type_error("clip_gradients: expected one of max_norm and clip_val");
  }
  WEFT_CHECK(norm_type == 2, "fabric: clip_gradients(): norm_type: expected 2, got {}", norm_type);
  const nb::gil_scoped_release unlocked;
  if (max_norm) return fabric.clip_gradients(optimizer, *max_norm, error_if_nonfinite);
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
      throw type_error(
          "run: micro-batch {}: expected a tuple of a tensor and a function of the model's output, "
          "got {}",
          i, nb::repr(pair).c_str());
    }
    return dist::MicroBatch{
        .input = nb::cast<Tensor>(pair[0]), .loss = [loss, i](const Tensor& output) {
          const nb::gil_scoped_acquire locked;
          const nb::object value = loss(output);
          if (nb::isinstance<Tensor>(value)) return nb::cast<Tensor>(value);
          throw type_error("run: micro-batch {}: expected a tensor from the loss, got a {}", i,
                           type_of(value));
        }};
  };
  return {.count = static_cast<int64_t>(nb::len(pairs)),
          .at = at,
          .accumulates = accumulates,
          .after_each = std::move(after_each)};
}

/// Of this host among the hosts.
int node_rank() {
  if (!dist::is_rank()) return 0;
  constexpr const char* kSaid = "GROUP_RANK";
  if (dist::variable(kSaid)) return dist::variable_number(kSaid, 0, dist::kMostRanks);
  const dist::RankPlace place = dist::rank_place();
  return place.rank / place.local_size;
}

/// Where a program gives none.
uint64_t seed_of_environment() {
  constexpr const char* kSaid = "PL_GLOBAL_SEED";
  const char* const said = dist::variable(kSaid);
  if (!said) return 0;
  const std::string_view text = said;
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  WEFT_CHECK(error == std::errc() && end == text.data() + text.size(),
             "seed_everything: {}: expected a number, got \"{}\"", kSaid, text);
  return seed;
}

/// A model, or what a batch may be, on the Fabric's device.
nb::object to_device_of(const Fabric& fabric, nb::handle object) {
  if (nb::isinstance<nn::Module>(object)) {
    nb::cast<nn::Module&>(object).to(fabric.device());
    return nb::borrow(object);
  }
  return with_each_tensor(object, [&](Tensor& x) { x = ops::to(x, fabric.device()); });
}

/// Strategies compute where the Fabric does: what is not to be moved has to be there.
void check_place(const Fabric& fabric, const nn::Module& model) {
  for (const auto& [name, tensor] : model.unrouted_state()) {
    WEFT_CHECK(!nn::has_memory(tensor) || tensor.device() == fabric.device(),
               "setup: move_to_device=False: expected a model on {}, where this rank computes, got "
               "\"{}\" on {}",
               fabric.device(), name, tensor.device());
  }
}

/// A model, if there is one, and optimizers.
void set_up(Fabric& fabric, nb::handle model, const nb::tuple& optimizers, bool move_to_device) {
  std::vector<optim::Optimizer*> all;
  for (nb::handle optimizer : optimizers) {
    if (!nb::isinstance<optim::Optimizer>(optimizer)) {
      throw type_error("setup: expected an optimizer, got {}", type_of(optimizer));
    }
    all.push_back(nb::cast<optim::Optimizer*>(optimizer));
  }
  auto* const module = model ? nb::cast<nn::Module*>(model) : nullptr;
  if (module && !move_to_device) check_place(fabric, *module);
  {
    const nb::gil_scoped_release unlocked;
    if (module) {
      fabric.setup(*module, all, with_replica(module->structure(), *module));
    } else {
      fabric.setup_optimizers(all);
    }
  }
  if (model) watch_forward(model);
  // A step asks its models' strategies: these live as long as the optimizer does. The function is
  // never freed: Python goes before static objects do.
  static const nb::handle keep =
      nb::cpp_function([](nb::handle, nb::handle) {}, nb::keep_alive<1, 2>()).release();
  for (size_t i = 0; i < all.size(); ++i) {
    for (const nn::Module* const trained : fabric.models_of(*all[i])) {
      keep(optimizers[i], nb::find(*trained));
    }
  }
}

/// Backward passes and steps.
void bind_steps(nb::module_& m, nb::class_<Fabric>& fabric) {
  nb::class_<data::LoaderWatch>(m, "LatestBatch", "What a loader says of the batch it gave last.")
      .def_ro("fillers", &data::LoaderWatch::fillers,
              "Rows at its end that other ranks have as well.")
      .def_ro("is_last", &data::LoaderWatch::is_last, "Whether it is its epoch's last.");
  fabric
      .def(
          "backward",
          [](Fabric& self, const Tensor& loss, const nn::Module* model,
             std::optional<bool> retain_graph) {
            WEFT_CHECK(!model || Fabric::of(*model) == &self,
                       "fabric: backward() of a model that was not set up");
            WEFT_CHECK(!retain_graph.value_or(false),
                       "fabric: backward(): retain_graph: expected False: a graph is freed while "
                       "it runs; call backward() once, of the sum of the losses");
            self.backward(loss);
          },
          "loss"_a, nb::kw_only(), "model"_a.none() = nb::none(), "retain_graph"_a = nb::none(),
          Unlocked(),
          "The gradients of the mean of all ranks' losses, for all models that it is of. model: "
          "which of them Lightning's DeepSpeed is to be told; an Error where it was not set up. "
          "retain_graph: False alone.")
      .def(
          "accumulate",
          [](Fabric& self, const nb::args& models) {
            std::vector<nn::Module*> all;
            for (nb::handle model : models) {
              if (!nb::isinstance<nn::Module>(model)) {
                throw type_error("accumulate: expected a model, got {}", type_of(model));
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
          "clip_gradients", &clip, "optimizer"_a, "max_norm"_a = nb::none(),
          "clip_val"_a = nb::none(), "norm_type"_a = 2.0, "error_if_nonfinite"_a = false,
          "Scales the gradients of the optimizer's parameters so that their norm over all ranks is "
          "at most max_norm, and returns the norm that they had; or clamps each element to "
          "[-clip_val, clip_val]. In 16-mixed it divides them by the loss scale first. norm_type: "
          "2 alone. error_if_nonfinite: an infinite norm, or one that is no number, is an Error, "
          "where otherwise step() leaves out the step in 16-mixed alone.")
      .def(
          "clip_gradients",
          [](Fabric& self, nn::Module& model, optim::Optimizer& optimizer,
             std::optional<double> clip_val, std::optional<double> max_norm, double norm_type,
             bool error_if_nonfinite) {
            WEFT_CHECK(Fabric::of(model) == &self,
                       "fabric: clip_gradients() of a model that was not set up");
            return clip(self, optimizer, max_norm, clip_val, norm_type, error_if_nonfinite);
          },
          "model"_a, "optimizer"_a, "clip_val"_a = nb::none(), "max_norm"_a = nb::none(),
          "norm_type"_a = 2.0, "error_if_nonfinite"_a = false,
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

/// A Fabric in a cycle of references outlives the interpreter, and its save would go without a
/// word. So what is being saved when the program ends is completed then. Ranks of which an
/// exception ends one do not meet any more: theirs is dropped.
void complete_save_at_exit(nb::handle fabric) {
  static const nb::object& all = []() -> const nb::object& {
    auto& fabrics = *new nb::object(nb::module_::import_("weakref").attr("WeakSet")());
    nb::module_::import_("atexit").attr("register")(nb::cpp_function([&fabrics] {
      const bool has_failed = nb::hasattr(nb::module_::import_("sys"), "last_value");
      for (nb::handle one : nb::list(fabrics)) {
        auto& fabric = nb::cast<Fabric&>(one);
        const nb::gil_scoped_release unlocked;
        if (has_failed && fabric.size() > 1) {
          fabric.drop_save();
        } else {
          fabric.wait_for_save();
        }
      }
    }));
    return fabrics;
  }();
  all.attr("add")(fabric);
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
            self.log_dict(values_of("log_dict", metrics), step);
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
  nb::class_<TensorShares> shares(m, "SharedTensorLoader", "This rank's part of a TensorLoader.");
  define_iteration(m, "SharedTensorLoaderIterator", shares, &tuple_of);
  nb::class_<Fabric> fabric(
      m, "Fabric", nb::is_weak_referenceable(),
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
  define_init<O>(fabric,
                 std::tuple_cat(shared_fields(),
                                std::tuple(Field{"gradient_accumulation_steps", &O::accumulate},
                                           WEFT_FIELD(O, loggers), WEFT_FIELD(O, callbacks))));
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
      .def_prop_ro(
          "node_rank", [](const Fabric&) { return node_rank(); },
          "This host's number among the hosts: the launcher's GROUP_RANK, else by ranks that are "
          "numbered host by host.")
      .def_prop_ro(
          "strategy", [](const Fabric& self) { return self.options().strategy; },
          "The StrategyOptions, with Weft's name of the strategy.")
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
           "A model, which is moved and returned, or tensors, in tuples, lists, dicts and "
           "dataclasses, on the Fabric's device.")
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
          [](Fabric& self, nb::handle_t<nn::Module> model, const nb::args& optimizers,
             bool move_to_device) {
            set_up(self, model, optimizers, move_to_device);
            return one_or_all(nb::tuple(nb::make_tuple(model) + optimizers));
          },
          "model"_a, "optimizers"_a, "move_to_device"_a = true,
          "Shards a model and its optimizers, which have not stepped yet, as the strategy says. "
          "From there on model(x), optimizer.step(), zero_grad() and clip_grad_norm_() know of it. "
          "Returns what it was given, which the Fabric does not keep alive: a model lives as long "
          "as its optimizers. move_to_device=False: it is on the Fabric's device already; an Error "
          "where it is not.")
      .def(
          "setup_module",
          [](Fabric& self, nb::handle_t<nn::Module> model, bool move_to_device) {
            set_up(self, model, nb::tuple(), move_to_device);
            return nb::borrow(model);
          },
          "model"_a, "move_to_device"_a = true,
          "The model alone, before setup_optimizers(). Returns it.")
      .def(
          "setup_optimizers",
          [](Fabric& self, const nb::args& optimizers) {
            set_up(self, nb::handle(), optimizers, true);
            return one_or_all(optimizers);
          },
          "optimizers"_a, "Optimizers of parameters of models that were set up. Returns them.")
      .def(
          "forward", [](Fabric& self, const Tensor& x) { return self.forward(x); }, "x"_a,
          Unlocked(), "The only model on x in the precision asked for, as model(x).")
      .def(
          "forward",
          [](Fabric& self, nn::Module& model, const nb::callable& function) {
            return forward_of(self, model, function);
          },
          "model"_a, "function"_a,
          "What function() returns, a tensor, or tensors in tuples, lists, dicts and dataclasses, "
          "called as model(x) would be: for methods of a model that was set up. An Error under dp "
          "and pipeline, which run model(x) alone.")
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
          [](const Fabric& self, nb::handle_t<data::Loader> loader, bool use_distributed_sampler,
             bool move_to_device) {
            self.setup_dataloader(nb::cast<data::Loader&>(loader), use_distributed_sampler,
                                  move_to_device);
            return nb::borrow(loader);
          },
          "loader"_a, "use_distributed_sampler"_a = true, "move_to_device"_a = true,
          "From here on the loader gives this rank's share. use_distributed_sampler=False: all of "
          "it, on this rank's device, for a loader that knows of the ranks by itself. "
          "move_to_device=False: batches stay where they are.")
      .def(
          "setup_dataloader",
          [](const Fabric& self, data::TensorLoader& loader, bool use_distributed_sampler,
             bool move_to_device) {
            return std::unique_ptr<TensorShares>(
                new TensorShares(self.share(loader, use_distributed_sampler, move_to_device)));
          },
          "loader"_a, "use_distributed_sampler"_a = true, "move_to_device"_a = true,
          nb::keep_alive<0, 1>(), nb::keep_alive<0, 2>(), "An iterator of this rank's share.")
      .def(
          "setup_dataloader",
          [](nb::handle_t<Fabric> self, nb::handle loader, bool use_distributed_sampler,
             bool move_to_device) {
            return share_batches(self, loader, use_distributed_sampler, move_to_device);
          },
          "loader"_a, "use_distributed_sampler"_a = true, "move_to_device"_a = true,
          "An iterable of this rank's share of any iterable's batches: tensors and NumPy's arrays, "
          "in tuples, lists, dicts and dataclasses, of which a first dimension counts the samples; "
          "other leaves stay as they are. It has to give the same on every rank. Each batch needs "
          "memory of its own: one is read ahead.")
      .def(
          "setup_dataloaders",
          [](nb::handle_t<Fabric> self, const nb::args& loaders, bool use_distributed_sampler,
             bool move_to_device) {
            nb::list all;
            for (nb::handle loader : loaders) {
              all.append(
                  self.attr("setup_dataloader")(loader, use_distributed_sampler, move_to_device));
            }
            return one_or_all(nb::tuple(all));
          },
          "loaders"_a, "use_distributed_sampler"_a = true, "move_to_device"_a = true,
          "setup_dataloader() of each.")
      .def(
          "save",
          [](Fabric& self, const io::Path& path, const std::optional<nb::dict>& state,
             const std::optional<nb::dict>& filter) {
            if (filter && !state) throw nb::type_error("fabric.save: filter: expected a state");
            std::optional<States> states;
            if (state) states.emplace(*state, filter.value_or(nb::dict()));
            const nb::gil_scoped_release unlocked;
            states ? self.save(path.string(), states->get()) : self.save(path.string());
          },
          "path"_a, "state"_a = nb::none(), "filter"_a = nb::none(),
          "The whole model as a safetensors file, written by rank 0; or any state, a dict of "
          "models, optimizers, schedulers, scalers, loaders, tensors, dicts of them, numbers, what "
          "JSON holds, and objects with state_dict() and load_state_dict(). Tuples come back as "
          "lists, dicts in the order of their keys, which are texts. Every rank calls it. A "
          "TypeError names the key and the type of what cannot be saved.\n\nfilter: by the key of "
          "a model, a dict, or an object whose state_dict() is one, a function(name, value) that "
          "says whether an item stays: {\"model\": lambda name, tensor: \"lora\" in name}. Such a "
          "model is loaded with strict=False.")
      .def(
          "async_save",
          [](nb::handle_t<Fabric> self, const io::Path& path, const nb::dict& state,
             const std::optional<std::function<void()>>& then) {
            const States states(state, nb::dict());
            complete_save_at_exit(self);
            auto& fabric = nb::cast<Fabric&>(self);
            const nb::gil_scoped_release unlocked;
            fabric.async_save(path.string(), states.get(), then.value_or(nullptr));
          },
          "path"_a, "state"_a, "then"_a = nb::none(),
          "save() of a state; a sharded one is copied, and written while training goes on. It is "
          "complete after a step of an optimizer, the next save or wait_for_save(), whatever comes "
          "first, which raises what went wrong, or at the program's end. Rank 0 then calls then(). "
          "A Fabric that goes before that has dropped it, and says so, as do several ranks of "
          "which an exception ends one.")
      .def("wait_for_save", &Fabric::wait_for_save, Unlocked(), "Until async_save() is complete.")
      .def(
          "load",
          [](Fabric& self, const io::Path& path, const std::optional<nb::dict>& state,
             bool strict) {
            if (!strict && !state) {
              throw nb::type_error("fabric.load: strict=False: expected a state");
            }
            std::vector<std::string> left;
            std::optional<States> states;
            const auto ask = [&](const Fabric::StateKinds& kinds) {
              const nb::gil_scoped_acquire locked;
              return states.emplace(*state, kinds, path, strict).get();
            };
            {
              const nb::gil_scoped_release unlocked;
              if (state) left = self.load_by_kinds(path.string(), ask);
              if (!state) self.load(path.string());
            }
            return states ? states->finish(std::move(left)) : left;
          },
          "path"_a, "state"_a = nb::none(), "strict"_a = true,
          "What save() has left, into the objects of the dict, by load_state_dict() of those that "
          "are not Weft's own; its other values are replaced. Returns the names in the file that "
          "were not asked for. strict=False: what the file lacks stays as it is, be it a value of "
          "the dict or a model's tensor, and tensors that a model lacks are left out; an Error for "
          "some of a model's that was set up on several ranks.")
      .def(
          "load_raw",
          [](const Fabric&, const io::Path& path, nb::handle object, bool strict) {
            if (!nb::isinstance<nn::Module>(object)) {
              throw type_error(
                  "fabric.load_raw: expected a model, got a {}: a file of tensors alone has no "
                  "optimizer's state; load() reads what save() has left",
                  type_of(object));
            }
            auto& model = nb::cast<nn::Module&>(object);
            const nb::gil_scoped_release unlocked;
            model.load_state_dict(train::read_weight_file(path).tensors, {.strict = strict});
          },
          "path"_a, "obj"_a, "strict"_a = true,
          "The tensors of a safetensors file, or of a state dict that torch.save wrote, into a "
          "model, before or after setup(). Every rank calls. strict=False: some of them; an Error "
          "of a model that was set up on several ranks.")
      .def(
          "seed_everything",
          [](const Fabric& self, std::optional<uint64_t> given, bool) {
            const uint64_t seed = given ? *given : seed_of_environment();
            self.seed_everything(seed);
            return seed;
          },
          "seed"_a = nb::none(), "workers"_a = true,
          "Weights of all ranks from one seed, dropout of each from its own stream: call it first. "
          "Without a seed that of PL_GLOBAL_SEED, Lightning's variable, else 0. Returns the seed. "
          "workers: a loader draws by its own seed, epoch and sample in any case.")
      .def("print", [](const Fabric& self, const nb::args& arguments, const nb::kwargs& options) {
        if (self.is_main()) nb::module_::import_("builtins").attr("print")(*arguments, **options);
      });
}

}  // namespace weft::python
