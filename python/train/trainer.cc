// weft.train.Trainer: a module written in Python, its steps, and callbacks in either language.
#include <nanobind/stl/chrono.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>

#include "data/tensors/tensor_dataset.h"
#include "python/bindings.h"
#include "python/docstrings.h"
#include "python/json.h"
#include "python/model_call.h"
#include "python/modules.h"
#include "python/named_tensors.h"
#include "python/schedule.h"
#include "python/train/batches.h"
#include "python/train/fabric.h"
#include "train/config.h"
#include "train/trainer/early_stopping.h"
#include "train/trainer/model_checkpoint.h"
#include "train/trainer/trainer.h"
#include "train/trainer/watch_layers.h"
#include "train/trainer/weight_averaging.h"

namespace weft::python {

template <>
struct Conversion<std::vector<std::shared_ptr<train::Callback>>> : OneOrSeveral<train::Callback> {};

/// A count, or a fraction.
template <>
struct Conversion<train::Limit> {
  using Argument = std::variant<int64_t, double>;
  static Argument to_python(const train::Limit& limit) {
    return limit.count ? Argument(*limit.count) : Argument(limit.fraction);
  }
  static train::Limit from_python(const Argument& argument) {
    return std::visit([](auto given) { return train::Limit(given); }, argument);
  }
};

/// Seconds, a timedelta, or a text as on the command line. Throws Error for another one.
template <>
struct Conversion<std::optional<std::chrono::duration<double>>> {
  using Seconds = std::chrono::duration<double>;
  using Argument = std::optional<std::variant<Seconds, double, std::string>>;
  static Argument to_python(const std::optional<Seconds>& time) {
    return time ? Argument(*time) : Argument();
  }
  static std::optional<Seconds> from_python(const Argument& argument) {
    if (!argument) return {};
    const auto* const text = std::get_if<std::string>(&*argument);
    if (!text) {
      const auto* const seconds = std::get_if<double>(&*argument);
      return seconds ? Seconds(*seconds) : std::get<Seconds>(*argument);
    }
    const std::optional<double> seconds = train::parse_duration(*text);
    WEFT_CHECK(seconds,
               "a time: expected seconds, a timedelta, \"90s\", \"10m\", \"2h\", \"1d\" or "
               "\"DD:HH:MM:SS\", got \"{}\"",
               *text);
    return Seconds(*seconds);
  }
};

template <>
struct Names<train::GradientClip> {
  static constexpr const char* kOption = "gradient_clip_algorithm";
  static constexpr NameList<train::GradientClip> kAll = {{"norm", train::GradientClip::kNorm},
                                                         {"value", train::GradientClip::kValue}};
};
template <>
struct Names<train::Nonfinite> {
  static constexpr const char* kOption = "nonfinite";
  static constexpr NameList<train::Nonfinite> kAll = {{"take", train::Nonfinite::kTake},
                                                      {"stop", train::Nonfinite::kStop},
                                                      {"skip", train::Nonfinite::kSkip}};
};
template <>
struct Names<train::Capture> {
  static constexpr const char* kOption = "capture";
  static constexpr NameList<train::Capture> kAll = {
      {"off", train::Capture::kOff}, {"auto", train::Capture::kAuto}, {"on", train::Capture::kOn}};
};
template <>
struct Names<train::Mode> {
  static constexpr const char* kOption = "mode";
  static constexpr NameList<train::Mode> kAll = {{"min", train::Mode::kMin},
                                                 {"max", train::Mode::kMax}};
};

namespace {

using train::Batch;
using train::BatchSource;
using train::Callback;
using train::LogOptions;
using train::NamedValues;
using train::Optimization;
using train::Trainer;
using train::TrainingModule;

/// What a method of the user's has returned.
template <class T>
T returned(const char* method, const char* expected, nb::handle value) {
  if (nb::isinstance<std::remove_reference_t<T>>(value)) return nb::cast<T>(value);
  throw type_error("{}: expected {}, got {}", method, expected, type_of(value));
}

/// Of an optimizer, or of one and a schedule of its rate, a function of the step.
Optimization::Part part_of(nb::handle returned) {
  constexpr const char* kMethod = "configure_optimizers";
  const bool is_pair = nb::isinstance<nb::tuple>(returned) && nb::len(returned) == 2;
  const nb::object optimizer = is_pair ? returned[0] : nb::borrow(returned);
  const nb::object schedule = is_pair ? returned[1] : nb::none();
  if (!nb::isinstance<optim::Optimizer>(optimizer) ||
      (is_pair && !PyCallable_Check(schedule.ptr()))) {
    throw type_error(
        "{}: expected an optimizer, a tuple of one and a function of the step, or a list of such, "
        "got {}",
        kMethod, nb::repr(returned).c_str());
  }
  Optimization::Part part = {nb::cast<std::shared_ptr<optim::Optimizer>>(optimizer)};
  if (is_pair) part.schedule = schedule_of(kMethod, nb::cast<ScheduleFunction>(schedule));
  return part;
}

/// Of one such, or of a list.
Optimization optimization_of(nb::handle returned) {
  Optimization all({});
  if (nb::isinstance<nb::list>(returned)) {
    for (nb::handle one : nb::borrow<nb::list>(returned)) all.parts.push_back(part_of(one));
  } else {
    all.parts.push_back(part_of(returned));
  }
  return all;
}

/// One as itself, several as a list, as Lightning has them.
template <class At>
nb::object one_or_list(const TrainingModule& module, const At& at) {
  const size_t count = module.trainer().optimizers();
  if (count == 1) return at(0);
  nb::list all;
  for (size_t i = 0; i < count; ++i) all.append(at(i));
  return all;
}

/// A module whose steps are Python's.
struct DerivableModule : Derivable<TrainingModule> {
  using Derivable::Derivable;
  nn::Module& model() override {
    const Overridden model(nb_trampoline, "model");
    if (!model) return TrainingModule::model();
    nb::object given = model();
    auto& result = returned<nn::Module&>("model", "a module", given);
    if (&result != this) model_ = std::move(given);
    return result;
  }
  train::NamedModels models() override {
    const Overridden models(nb_trampoline, "models");
    if (!models) return TrainingModule::models();
    const auto given = returned<nb::dict>("models", "a dict of modules by name", models());
    train::NamedModels all;
    for (const auto& [name, module] : given) {
      all.emplace_back(nb::cast<std::string>(name),
                       &returned<nn::Module&>("models", "a module", module));
    }
    models_ = given;
    return all;
  }
  Tensor training_step(const Batch& batch, int64_t index) override {
    const Overridden step(nb_trampoline, "training_step");
    if (!step) return TrainingModule::training_step(batch, index);
    constexpr const char* kExpected = "the loss, a tensor, or a dict with one as \"loss\"";
    step_outputs_.clear();  // before the next are made
    const nb::object given = step(batch, index);
    if (given.is_none() && !automatic_optimization) return {};
    if (!nb::isinstance<nb::dict>(given)) {
      return returned<Tensor>("training_step", kExpected, given);
    }
    const auto outputs = nb::cast<nb::dict>(given);
    auto loss = returned<Tensor>("training_step", kExpected, outputs.get("loss", nb::none()));
    for (const auto& [name, value] : outputs) {
      const bool is_tensor = nb::isinstance<Tensor>(value);
      step_outputs_[name] = is_tensor ? nb::cast(detach(nb::cast<Tensor>(value))) : value;
    }
    loss_ = detach(loss);
    return loss;
  }
  Tensor input(const Batch& batch) override {
    const Overridden input(nb_trampoline, "input");
    if (!input) return TrainingModule::input(batch);
    return returned<Tensor>("input", "what the model is called on, a tensor", input(batch));
  }
  Tensor loss(const Tensor& output, const Batch& batch) override {
    const Overridden loss(nb_trampoline, "loss");
    if (!loss) return TrainingModule::loss(output, batch);
    return returned<Tensor>("loss", "a tensor", loss(output, batch));
  }
  void validation_step(const Batch& batch, int64_t index) override {
    const Overridden step(nb_trampoline, "validation_step");
    if (!step) return TrainingModule::validation_step(batch, index);
    outputs_ = step(batch, index);
  }
  void test_step(const Batch& batch, int64_t index) override {
    const Overridden step(nb_trampoline, "test_step");
    if (!step) return TrainingModule::test_step(batch, index);
    outputs_ = step(batch, index);
  }
  Tensor predict_step(const Batch& batch, int64_t index) override {
    const Overridden step(nb_trampoline, "predict_step");
    if (!step) return TrainingModule::predict_step(batch, index);
    return returned<Tensor>("predict_step", "a tensor", step(batch, index));
  }
  Optimization configure_optimizers() override {
    const Overridden configure(nb_trampoline, "configure_optimizers");
    WEFT_CHECK(configure, "trainer: the module defines no configure_optimizers()");
    return optimization_of(configure());
  }
  void on_train_epoch_start() override { NB_OVERRIDE(on_train_epoch_start); }
  void on_train_epoch_end() override { NB_OVERRIDE(on_train_epoch_end); }
  void on_validation_epoch_start() override { NB_OVERRIDE(on_validation_epoch_start); }
  void on_validation_epoch_end() override { NB_OVERRIDE(on_validation_epoch_end); }
  void on_test_epoch_start() override { NB_OVERRIDE(on_test_epoch_start); }
  void on_test_epoch_end() override { NB_OVERRIDE(on_test_epoch_end); }

  /// What training_step() returned with that loss; {"loss": loss} where it was not called alone for
  /// it: in micro-batches and captured passes.
  nb::dict step_outputs(const Tensor& loss) const {
    nb::dict outputs;
    if (loss.defined() && loss_.defined() && loss.raw() == loss_.raw()) {
      outputs.update(step_outputs_);
    }
    outputs["loss"] = loss;
    return outputs;
  }
  /// What validation_step() or test_step() returned.
  const nb::object& outputs() const { return outputs_; }

 private:
  nb::object model_;  // these live as long as C++ knows of them
  nb::dict models_;
  nb::dict step_outputs_;
  Tensor loss_;
  nb::object outputs_ = nb::none();
};

/// What training modules keep for their subclasses.
struct Access : TrainingModule {
  static void log_of(TrainingModule& m, const std::string& name, const Tensor& value,
                     const LogOptions& options) {
    using Log = void (TrainingModule::*)(const std::string&, const Tensor&, const LogOptions&);
    (m.*static_cast<Log>(&Access::log))(name, value, options);
  }
  static void manual_backward_of(const TrainingModule& m, const Tensor& loss) {
    (m.*(&Access::manual_backward))(loss);
  }
};

void log(TrainingModule& self, const std::string& name, const Operand& value, bool on_step,
         bool on_epoch) {
  const bool is_tensor = value.kind == Operand::Kind::kTensor;
  Access::log_of(self, name,
                 is_tensor ? value.tensor : Tensor::scalar(value.as_double(), DType::f64),
                 {.on_epoch = on_epoch, .on_step = on_step});
}

/// C++'s own step, also of a class that has another: what super() calls.
#define WEFT_STEP(name)                                         \
  [](TrainingModule& self, const Batch& batch, int64_t index) { \
    return self.TrainingModule::name(batch, index);             \
  }

void bind_module(nb::module_& m) {
  const auto text = [](const char* name) {
    return comment_on(std::string("train::TrainingModule::") + name);
  };
  nb::class_<TrainingModule, nn::Module, DerivableModule>(
      m, "TrainingModule", nb::dynamic_attr(),
      "A model that says how it is trained. Subclasses define forward(), training_step() or "
      "loss(), configure_optimizers(), which returns an optimizer, a tuple of one and a function "
      "of the step that its rate is multiplied by, or a list of such, and where it is validated "
      "or tested validation_step() and test_step(). A batch is a list of tensors.")
      .def(nb::init<>())
      .def("_arguments", [](const TrainingModule&) { return nb::tuple(); })
      .def("training_step", WEFT_STEP(training_step), "batch"_a, "batch_idx"_a,
           "The loss of a batch, one number: the mean over its samples; or a dict with it as "
           "\"loss\" and what else on_train_batch_end of callbacks is to see. By default loss() of "
           "model()(input(batch)).")
      .def(
          "input",
          [](TrainingModule& self, const Batch& batch) {
            return self.TrainingModule::input(batch);
          },
          "batch"_a, "What the model is called on: by default the batch's first tensor.")
      .def(
          "loss",
          [](TrainingModule& self, const Tensor& output, const Batch& batch) {
            return self.TrainingModule::loss(output, batch);
          },
          "output"_a, "batch"_a, "Of what the model returned: for steps that a pipeline takes.")
      .def("validation_step", WEFT_STEP(validation_step), "batch"_a, "batch_idx"_a,
           "Measures a batch, in evaluation and without a tape; log() says what. What it returns "
           "on_validation_batch_end of callbacks sees.")
      .def("test_step", WEFT_STEP(test_step), "batch"_a, "batch_idx"_a,
           "The same, for Trainer.test() and on_test_batch_end.")
      .def("predict_step", WEFT_STEP(predict_step), "batch"_a, "batch_idx"_a, text("predict_step"))
      .def(
          "model", [](TrainingModule& self) -> nn::Module& { return self.TrainingModule::model(); },
          nb::rv_policy::reference, text("model"))
      .def(
          "models",
          [](TrainingModule& self) {
            nb::dict models;
            for (const auto& [name, model] : self.TrainingModule::models()) {
              models[name.c_str()] = nb::cast(model, nb::rv_policy::reference);
            }
            return models;
          },
          text("models"))
      .def_rw("automatic_optimization", &TrainingModule::automatic_optimization,
              "False: training_step() takes the steps of one or several optimizers itself, by "
              "manual_backward() and optimizers(). It may return nothing.")
      .def(
          "optimizers",
          [](const TrainingModule& self) {
            return one_or_list(self, [&](size_t i) {
              return nb::cast(&self.trainer().optimizer(i), nb::rv_policy::reference);
            });
          },
          "In a fit, what configure_optimizers() gave: one as itself, several as a list.")
      .def(
          "lr_schedulers",
          [](const TrainingModule& self) {
            return one_or_list(self, [&](size_t i) {
              return nb::cast(self.trainer().scheduler(i), nb::rv_policy::reference);
            });
          },
          "Those of optimizers(), None where one has no schedule. With automatic_optimization "
          "false the module calls their step().")
      .def("manual_backward", &Access::manual_backward_of, "loss"_a, Unlocked(),
           text("manual_backward"))
      .def("configure_optimizers", &TrainingModule::configure_optimizers,
           text("configure_optimizers"))
      .def("on_train_epoch_start", &TrainingModule::on_train_epoch_start)
      .def("on_train_epoch_end", &TrainingModule::on_train_epoch_end)
      .def("on_validation_epoch_start", &TrainingModule::on_validation_epoch_start)
      .def("on_validation_epoch_end", &TrainingModule::on_validation_epoch_end)
      .def("on_test_epoch_start", &TrainingModule::on_test_epoch_start)
      .def("on_test_epoch_end", &TrainingModule::on_test_epoch_end)
      .def("log", &log, "name"_a, "value"_a, nb::kw_only(), "on_step"_a = false,
           "on_epoch"_a = true, text("log"))
      .def(
          "log_dict",
          [](TrainingModule& self, const std::map<std::string, Operand>& values, bool on_step,
             bool on_epoch) {
            for (const auto& [name, value] : values) log(self, name, value, on_step, on_epoch);
          },
          "dictionary"_a, nb::kw_only(), "on_step"_a = false, "on_epoch"_a = true, text("log"))
      .def_prop_ro("trainer", &TrainingModule::trainer, nb::rv_policy::reference, text("trainer"));
}

// Those with the trainer and the module alone.
#define WEFT_HOOKS(HOOK)      \
  HOOK(on_fit_start)          \
  HOOK(on_fit_end)            \
  HOOK(on_sanity_check_start) \
  HOOK(on_sanity_check_end)   \
  HOOK(on_train_start)        \
  HOOK(on_train_end)          \
  HOOK(on_train_epoch_start)  \
  HOOK(on_train_epoch_end)    \
  HOOK(on_validation_start)   \
  HOOK(on_validation_end)     \
  HOOK(on_test_start)         \
  HOOK(on_test_end)           \
  HOOK(on_save_point)

/// A callback that Python may derive from.
template <class Base>
struct DerivableCallback : Base {
  NB_TRAMPOLINE(Base);
#define WEFT_HOOK(name)                                               \
  void name(Trainer& trainer, TrainingModule& module) override {      \
    const Overridden hook(nb_trampoline, #name);                      \
    hook ? void(hook(trainer, module)) : Base::name(trainer, module); \
  }
  WEFT_HOOKS(WEFT_HOOK)
#undef WEFT_HOOK
  void on_train_batch_start(Trainer& trainer, TrainingModule& module, const Batch& batch,
                            int64_t index) override {
    const Overridden hook(nb_trampoline, "on_train_batch_start");
    hook ? void(hook(trainer, module, batch, index))
         : Base::on_train_batch_start(trainer, module, batch, index);
  }
  void on_before_optimizer_step(Trainer& trainer, TrainingModule& module,
                                optim::Optimizer& optimizer) override {
    const Overridden hook(nb_trampoline, "on_before_optimizer_step");
    hook ? void(hook(trainer, module, optimizer))
         : Base::on_before_optimizer_step(trainer, module, optimizer);
  }
  void on_train_batch_end(Trainer& trainer, TrainingModule& module, const Tensor& loss,
                          const Batch& batch, int64_t index) override {
    const Overridden hook(nb_trampoline, "on_train_batch_end");
    const auto& own = dynamic_cast<const DerivableModule&>(module);
    hook ? void(hook(trainer, module, own.step_outputs(loss), batch, index))
         : Base::on_train_batch_end(trainer, module, loss, batch, index);
  }
  void on_validation_batch_end(Trainer& trainer, TrainingModule& module, const Batch& batch,
                               int64_t index) override {
    if (!hear_measured("on_validation_batch_end", trainer, module, batch, index)) {
      Base::on_validation_batch_end(trainer, module, batch, index);
    }
  }
  void on_test_batch_end(Trainer& trainer, TrainingModule& module, const Batch& batch,
                         int64_t index) override {
    if (!hear_measured("on_test_batch_end", trainer, module, batch, index)) {
      Base::on_test_batch_end(trainer, module, batch, index);
    }
  }
  void on_exception(Trainer& trainer, TrainingModule& module,
                    const std::exception& error) override {
    const Overridden hook(nb_trampoline, "on_exception");
    if (!hook) return Base::on_exception(trainer, module, error);
    const auto* const own = dynamic_cast<const nb::python_error*>(&error);
    hook(trainer, module,
         own ? nb::borrow(own->value()) : nb::module_::import_("weft").attr("Error")(error.what()));
  }
  /// A class that keeps a state without a word of its key is saved under its name.
  std::string state_key() const override {
    if (const Overridden key(nb_trampoline, "state_key"); key) return nb::cast<std::string>(key());
    std::string key = Base::state_key();
    const Overridden state(nb_trampoline, "state_dict");
    if (state && key.empty()) key = type_of(nb_trampoline.base());
    return key;
  }
  nlohmann::json state_dict() const override {
    const Overridden state(nb_trampoline, "state_dict");
    if (!state) return Base::state_dict();
    nb::dict rest;
    for (const auto& [name, value] : state_of(state)) {
      if (!kKeepsTensors || !nb::isinstance<Tensor>(value)) rest[name] = value;
    }
    return json_of(rest);
  }
  NamedTensors tensors(Trainer& trainer, TrainingModule& module) override {
    const Overridden state(nb_trampoline, "state_dict");
    if (!state || !kKeepsTensors) return Base::tensors(trainer, module);
    NamedTensors tensors;
    for (const auto& [name, value] : state_of(state)) {
      if (nb::isinstance<Tensor>(value)) {
        tensors.emplace_back(nb::cast<std::string>(name), nb::cast<Tensor>(value));
      }
    }
    return tensors;
  }
  void load_state_dict(const nlohmann::json& json) override {
    const Overridden load(nb_trampoline, "load_state_dict");
    if (!load) return Base::load_state_dict(json);
    kKeepsTensors ? void(rest_ = json) : void(load(object_of(json)));
  }
  /// The last that a checkpoint gives back.
  void load_tensors(Trainer& trainer, TrainingModule& module,
                    const NamedTensors& tensors) override {
    const Overridden load(nb_trampoline, "load_state_dict");
    if (!load || !kKeepsTensors) return Base::load_tensors(trainer, module, tensors);
    auto state = nb::cast<nb::dict>(object_of(rest_));
    state.update(dict_of(tensors));
    load(state);
  }

 private:
  /// Whether the state of Python's class may hold tensors: there is none of a class of C++.
  static constexpr bool kKeepsTensors = std::is_same_v<Base, Callback>;
  /// Calls Python's method with what the module's step has returned; false where there is none.
  bool hear_measured(const char* name, Trainer& trainer, TrainingModule& module, const Batch& batch,
                     int64_t index) {
    const Overridden hook(nb_trampoline, name);
    if (!hook) return false;
    hook(trainer, module, dynamic_cast<const DerivableModule&>(module).outputs(), batch, index);
    return true;
  }
  static nb::dict state_of(const Overridden& state) {
    return returned<nb::dict>("state_dict", "a dict", state());
  }
  nlohmann::json rest_;  // of a state whose tensors are still to come
};

template <class T>
using CallbackClass = nb::class_<T, Callback, DerivableCallback<T>>;

void bind_callback(nb::module_& m) {
  const auto text = [](const char* name) {
    return comment_on(std::string("train::Callback::") + name);
  };
  nb::class_<Callback, DerivableCallback<Callback>> callback(
      m, "Callback",
      "What a program adds to a Trainer's loop: subclasses define the hooks that they want. A "
      "class with a state_dict() of tensors and what JSON holds is saved with a checkpoint.");
  callback.def(nb::init<>());
#define WEFT_HOOK(name) callback.def(#name, &Callback::name, "trainer"_a, "module"_a, text(#name));
  WEFT_HOOKS(WEFT_HOOK)
#undef WEFT_HOOK
  callback
      .def("on_train_batch_start", &Callback::on_train_batch_start, "trainer"_a, "module"_a,
           "batch"_a, "batch_idx"_a, text("on_train_batch_start"))
      .def("on_before_optimizer_step", &Callback::on_before_optimizer_step, "trainer"_a, "module"_a,
           "optimizer"_a, text("on_before_optimizer_step"))
      .def(
          "on_train_batch_end",
          [](Callback& self, Trainer& trainer, TrainingModule& module, const nb::dict& outputs,
             const Batch& batch, int64_t index) {
            const auto loss = nb::cast<MaybeTensor>(outputs["loss"]);
            self.on_train_batch_end(trainer, module, loss, batch, index);
          },
          "trainer"_a, "module"_a, "outputs"_a, "batch"_a, "batch_idx"_a,
          "`outputs` has the loss as \"loss\", without a history, None on a pipeline's ranks but "
          "the last stage's, and what else a dict from training_step() held; of micro-batches, and "
          "of steps that are captured, the loss alone. trainer.has_stepped tells whether the batch "
          "was the last of a step.")
      .def(
          "on_validation_batch_end",
          [](Callback& self, Trainer& trainer, TrainingModule& module, nb::handle,
             const Batch& batch,
             int64_t index) { self.on_validation_batch_end(trainer, module, batch, index); },
          "trainer"_a, "module"_a, "outputs"_a.none(), "batch"_a, "batch_idx"_a,
          "`outputs`: what validation_step() returned. Also of the sanity check, and of "
          "Trainer.validate().")
      .def(
          "on_test_batch_end",
          [](Callback& self, Trainer& trainer, TrainingModule& module, nb::handle,
             const Batch& batch,
             int64_t index) { self.on_test_batch_end(trainer, module, batch, index); },
          "trainer"_a, "module"_a, "outputs"_a.none(), "batch"_a, "batch_idx"_a,
          "`outputs`: what test_step() returned.")
      .def(
          "on_exception", [](Callback&, Trainer&, TrainingModule&, nb::handle) {}, "trainer"_a,
          "module"_a, "exception"_a, text("on_exception"))
      .def("state_key", &Callback::state_key, text("state_key"))
      .def(
          "state_dict", [](const Callback& self) { return object_of(self.state_dict()); },
          "What load_state_dict() takes.")
      .def(
          "load_state_dict",
          [](Callback& self, nb::handle state) { self.load_state_dict(json_of(state)); },
          "state_dict"_a, text("load_state_dict"));
}

void bind_own_callbacks(nb::module_& m) {
  {
    using O = train::ModelCheckpointOptions;
    CallbackClass<train::ModelCheckpoint> bound(
        m, "ModelCheckpoint",
        "Keeps the best states of a fit, the latest one, or one every so often.");
    define_init<O>(
        bound, std::tuple(WEFT_FIELD(O, dirpath), WEFT_FIELD(O, filename), WEFT_FIELD(O, monitor),
                          WEFT_FIELD(O, mode), WEFT_FIELD(O, save_top_k), WEFT_FIELD(O, save_last),
                          WEFT_FIELD(O, every_n_train_steps), WEFT_FIELD(O, train_time_interval)));
    bound.def_prop_ro("best_model_path", &train::ModelCheckpoint::best_model_path)
        .def_prop_ro("best_model_score", &train::ModelCheckpoint::best_model_score)
        .def_prop_ro("last_model_path", &train::ModelCheckpoint::last_model_path)
        .def_prop_ro("kept", &train::ModelCheckpoint::kept, "Best first.");
  }
  {
    using O = train::EarlyStoppingOptions;
    CallbackClass<train::EarlyStopping> bound(
        m, "EarlyStopping", "Ends a fit when a metric has stopped getting better.");
    define_init<O>(bound,
                   std::tuple(WEFT_FIELD(O, monitor), WEFT_FIELD(O, mode), WEFT_FIELD(O, patience),
                              WEFT_FIELD(O, min_delta), WEFT_FIELD(O, check_finite),
                              WEFT_FIELD(O, stopping_threshold)));
    bound.def_prop_ro("best_score", &train::EarlyStopping::best_score)
        .def_prop_ro("wait_count", &train::EarlyStopping::wait_count)
        .def_prop_ro("stopped_epoch", &train::EarlyStopping::stopped_epoch);
  }
  {
    using O = train::EmaOptions;
    CallbackClass<train::EmaWeightAveraging> bound(
        m, "EmaWeightAveraging",
        "Validates, and ends with, an exponential moving average of the weights.");
    define_init<O>(bound, std::tuple(WEFT_FIELD(O, decay), WEFT_FIELD(O, update_every_n_steps),
                                     WEFT_FIELD(O, update_starting_at_step)));
    bound.def_prop_ro("averages", &train::EmaWeightAveraging::averages);
  }
  CallbackClass<train::WatchLayers>(m, "WatchLayers",
                                    "Logs every layer's largest weight and gradient, the "
                                    "gradient's norm, and what a narrow format would lose of it.")
      .def(nb::init<int64_t>(), "every_n_steps"_a = 10);
}

auto trainer_fields() {
  using O = train::TrainerOptions;
  return std::tuple_cat(
      fields_of(&O::fabric, shared_fields()),
      std::tuple(WEFT_FIELD(O, max_epochs), WEFT_FIELD(O, max_steps), WEFT_FIELD(O, max_time),
                 WEFT_FIELD(O, limit_train_batches), WEFT_FIELD(O, limit_val_batches),
                 WEFT_FIELD(O, limit_test_batches), WEFT_FIELD(O, limit_predict_batches),
                 WEFT_FIELD(O, val_check_interval), WEFT_FIELD(O, check_val_every_n_epoch),
                 WEFT_FIELD(O, num_sanity_val_steps), WEFT_FIELD(O, accumulate_grad_batches),
                 WEFT_FIELD(O, micro_batches), WEFT_FIELD(O, deterministic_reduce),
                 WEFT_FIELD(O, gradient_clip_val), WEFT_FIELD(O, gradient_clip_algorithm),
                 WEFT_FIELD(O, track_grad_norm), WEFT_FIELD(O, nonfinite),
                 WEFT_FIELD(O, log_every_n_steps), WEFT_FIELD(O, enable_progress_bar),
                 WEFT_FIELD(O, enable_table), WEFT_FIELD(O, detect_anomaly), WEFT_FIELD(O, capture),
                 WEFT_FIELD(O, handle_signals), WEFT_FIELD(O, directory), WEFT_FIELD(O, loggers),
                 WEFT_FIELD(O, callbacks)));
}

/// What a Trainer's loader is to C++: one of ours, or any iterable with a length, which `own` then
/// holds for as long as batches are asked for.
BatchSource source_of(nb::handle loader, std::optional<TrainerLoader>& own) {
  if (nb::isinstance<data::TensorLoader>(loader)) return nb::cast<data::TensorLoader&>(loader);
  if (nb::isinstance<data::Loader>(loader)) return nb::cast<data::Loader&>(loader);
  return own.emplace(nb::borrow(loader));
}

std::map<std::string, double> dict_of(const NamedValues& values) {
  return {values.begin(), values.end()};
}

/// A docstring with what a loader may be.
std::string with_loaders(const char* text) {
  return fmt::format(
      "{}\n\nA loader is a weft.data.TensorLoader or Loader, or any object with __iter__ and "
      "__len__ that gives the same batches on every rank: tensors or NumPy's arrays, one or a "
      "tuple or list of them. A TypeError names the class that has no length.",
      text);
}

/// As Fabric.setup() does: a step that calls forward() instead of the model is told so.
void watch_models_of(TrainingModule& module) {
  for (const auto& [name, model] : module.models()) {
    const nb::object known = nb::find(*model);
    if (known.is_valid()) watch_forward(known);
  }
}

/// What a function of the Trainer makes of a module and a loader.
template <auto function>
auto measured(Trainer& self, TrainingModule& module, nb::handle loader,
              const std::optional<std::string>& checkpoint) {
  std::optional<TrainerLoader> own;
  const BatchSource source = source_of(loader, own);
  watch_models_of(module);
  const nb::gil_scoped_release unlocked;
  auto result = (self.*function)(module, source, checkpoint.value_or(""));
  if constexpr (std::is_same_v<decltype(result), NamedValues>) {
    return dict_of(result);
  } else {
    return result;
  }
}

void bind_loop(nb::module_& m) {
  const auto text = [](const char* name) {
    return comment_on(std::string("train::Trainer::") + name);
  };
  nb::class_<Trainer> trainer(
      m, "Trainer",
      "Trains a TrainingModule by its own steps, on one device or many. One of max_epochs, "
      "max_steps and max_time says when it ends. Limits are counts (10) or fractions (0.1). None "
      "is an option's default; as check_val_every_n_epoch, with a count as val_check_interval, it "
      "counts the batches between validations from epoch to epoch. "
      "docs/trainer.md tells of each option.");
  define_init<train::TrainerOptions>(trainer, trainer_fields());
  trainer.def("launch", &launch<Trainer>, kLaunchText)
      .def("seed_everything", &Trainer::seed_everything, "seed"_a, text("seed_everything"))
      .def("add_callback", &Trainer::add_callback, "callback"_a, text("add_callback"))
      .def(
          "fit",
          [](Trainer& self, TrainingModule& module, nb::handle train, nb::handle validation,
             const std::optional<std::string>& checkpoint) {
            std::optional<TrainerLoader> own, own_measured;
            const BatchSource source = source_of(train, own);
            std::optional<BatchSource> measured;
            if (!validation.is_none()) measured.emplace(source_of(validation, own_measured));
            watch_models_of(module);
            const nb::gil_scoped_release unlocked;
            self.fit(module, source, measured, checkpoint.value_or(""));
          },
          "model"_a, "train_dataloaders"_a, "val_dataloaders"_a = nb::none(),
          "ckpt_path"_a = nb::none(), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
          nb::keep_alive<1, 4>(), with_loaders(text("fit")).c_str())
      .def("validate", &measured<&Trainer::validate<TrainingModule>>, "model"_a, "dataloaders"_a,
           "ckpt_path"_a = nb::none(), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
           with_loaders(text("validate")).c_str())
      .def("test", &measured<&Trainer::test<TrainingModule>>, "model"_a, "dataloaders"_a,
           "ckpt_path"_a = nb::none(), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
           with_loaders(text("test")).c_str())
      .def("predict", &measured<&Trainer::predict<TrainingModule>>, "model"_a, "dataloaders"_a,
           "ckpt_path"_a = nb::none(), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
           with_loaders(text("predict")).c_str())
      .def("save_checkpoint", &Trainer::save_checkpoint, "filepath"_a, Unlocked(),
           text("save_checkpoint"))
      .def(
          "log_figures",
          [](Trainer& self, const std::map<std::string, Operand>& figures) {
            NamedValues values;
            for (const auto& [name, figure] : figures) {
              const bool is_tensor = figure.kind == Operand::Kind::kTensor;
              values.emplace_back(name, is_tensor ? figure.tensor.item() : figure.as_double());
            }
            self.log_figures(values);
          },
          "figures"_a, text("log_figures"))
      .def("refuse_step", &Trainer::refuse_step, "why"_a, text("refuse_step"))
      .def("stop", &Trainer::stop, "reason"_a, text("stop"))
      .def(
          "metric", [](const Trainer& self, const std::string& name) { return self.metric(name); },
          "name"_a, text("metric"))
      .def_prop_ro(
          "metrics", [](const Trainer& self) { return dict_of(self.metrics()); }, text("metrics"))
      .def_prop_ro("fabric", nb::overload_cast<>(&Trainer::fabric),
                   nb::rv_policy::reference_internal)
      .def_prop_ro(
          "optimizer", [](const Trainer& self) -> optim::Optimizer& { return self.optimizer(); },
          nb::rv_policy::reference_internal)
      .def_prop_ro(
          "optimizers",
          [](const Trainer& self) {
            std::vector<optim::Optimizer*> all;
            for (size_t i = 0; i < self.optimizers(); ++i) all.push_back(&self.optimizer(i));
            return all;
          },
          nb::rv_policy::reference_internal)
      .def_prop_ro("estimated_steps", &Trainer::estimated_steps, text("estimated_steps"))
      .def_prop_ro("epoch", &Trainer::epoch, "Epochs that are done.")
      .def_prop_ro("batch", &Trainer::batch, "Batches of the epoch that are done.")
      .def_prop_ro("global_step", &Trainer::global_step, text("global_step"))
      .def_prop_ro("has_stepped", &Trainer::has_stepped,
                   "Whether the latest batch was a step's last.")
      .def_prop_ro("has_validated", &Trainer::has_validated)
      .def_prop_ro("has_ended_epoch", &Trainer::has_ended_epoch)
      .def_prop_ro("is_stopping", &Trainer::is_stopping)
      .def_prop_ro("was_interrupted", &Trainer::was_interrupted, "By a signal.")
      .def_prop_ro("was_skipped", &Trainer::was_skipped, "Whether the latest step was left out.")
      .def_prop_ro("stop_reason", &Trainer::stop_reason)
      .def_prop_ro("grad_norm", &Trainer::grad_norm, "Of the latest step; NaN where not asked for.")
      .def_prop_ro("seconds", &Trainer::seconds, "Of the fit, as of the latest step.");
}

}  // namespace

void bind_trainer(nb::module_ m) {
  bind_module(m);
  bind_callback(m);
  bind_own_callbacks(m);
  bind_loop(m);
}

}  // namespace weft::python
