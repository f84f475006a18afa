// weft.train.initialize: DeepSpeed's loop.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/bindings.h"
#include "python/casters.h"
#include "python/json.h"
#include "train/engine/engine.h"

namespace weft::python {
namespace {

using train::Engine;

void make_engine(Engine* self, nn::Module& model, const nb::object& config,
                 optim::Optimizer* optimizer, const nb::object& lr_scheduler,
                 const std::string& device) {
  train::EngineOptions options = {.device = device, .optimizer = optimizer};
  if (!lr_scheduler.is_none()) {
    options.lr_scheduler = [lr_scheduler](int64_t step) {
      const nb::gil_scoped_acquire locked;
      return nb::cast<double>(lr_scheduler(step));
    };
  }
  if (nb::isinstance<nb::str>(config)) {
    new (self) Engine(model, nb::cast<std::string>(config), std::move(options));
  } else {
    new (self) Engine(model, json_of(config), std::move(options));
  }
}

}  // namespace

void bind_engine(nb::module_ m) {
  nb::class_<Engine>(m, "Engine", "DeepSpeed's loop: what initialize() returns.")
      .def("__init__", make_engine, nb::kw_only(), "model"_a, "config"_a,
           "optimizer"_a = nb::none(), "lr_scheduler"_a = nb::none(), "device"_a = "cpu",
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 4>())
      .def(
          "__call__", [](Engine& self, const Tensor& x) { return self(x); }, "x"_a, Unlocked(),
          "The model on x, in the precision of the configuration.")
      .def("backward", &Engine::backward, "loss"_a, Unlocked(),
           "Adds the gradients of the loss, this micro-batch's mean.")
      .def("step", &Engine::step, Unlocked(),
           "Ends the micro-batch; at the boundary clips, steps and drops the gradients.")
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
      .def(
          "save_checkpoint",
          [](Engine& self, const std::string& directory, const std::optional<std::string>& tag,
             const nb::dict& client_state, bool save_latest) {
            train::EngineCheckpoint checkpoint = {.tag = tag.value_or(""),
                                                  .client_state = json_of(client_state),
                                                  .save_latest = save_latest};
            const nb::gil_scoped_release unlocked;
            self.save_checkpoint(directory, std::move(checkpoint));
          },
          "save_dir"_a, "tag"_a = nb::none(), "client_state"_a = nb::dict(), "save_latest"_a = true,
          "Writes save_dir/tag, whole or not at all, and save_dir/latest, which names it. Every "
          "rank calls.")
      .def(
          "load_checkpoint",
          [](Engine& self, const std::string& directory, const std::optional<std::string>& tag) {
            std::optional<train::LoadedCheckpoint> loaded;
            {
              const nb::gil_scoped_release unlocked;
              loaded = self.load_checkpoint(directory, tag.value_or(""));
            }
            if (!loaded) return nb::make_tuple(nb::none(), nb::dict());
            return nb::make_tuple(loaded->path, object_of(loaded->client_state));
          },
          "load_dir"_a, "tag"_a = nb::none(),
          "Goes on from a checkpoint, without a tag the latest; returns its path and the "
          "client_state, or (None, {}) where there is none.");
  m.def(
      "initialize",
      [](const nb::kwargs& arguments) {
        const nb::object engine = nb::type<Engine>()(**arguments);
        const nb::object scheduler = arguments.contains("lr_scheduler")
                                         ? nb::object(arguments["lr_scheduler"])
                                         : nb::object(nb::none());
        return nb::make_tuple(engine, engine.attr("optimizer"), nb::none(), scheduler);
      },
      "arguments"_a,
      "deepspeed.initialize: (engine, optimizer, None, lr_scheduler) of a model and DeepSpeed's "
      "config, as a dict or a file's path. optimizer: instead of the config's. lr_scheduler: a "
      "function of the step, a factor on the learning rate. device: cpu or cuda.");
}

}  // namespace weft::python
