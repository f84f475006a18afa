// weft.optim: optimizers by name, learning-rate schedules, clipping and loss scaling.
// python/weft/optim/__init__.py gives them PyTorch's names and arguments.
#include <nanobind/stl/map.h>
#include <nanobind/stl/unique_ptr.h>

#include "optim/clip.h"
#include "optim/grad_scaler.h"
#include "optim/optimizer_state.h"
#include "optim/registry.h"
#include "optim/schedule.h"
#include "python/bindings.h"
#include "python/casters.h"
#include "python/docstrings.h"
#include "python/exchange.h"
#include "python/json.h"
#include "python/named_tensors.h"
#include "python/schedule.h"

namespace weft::python {
namespace {

using optim::Optimizer;

/// Tensors, or pairs of a name and a tensor. Those without a name are numbered.
NamedTensors parameters_of(nb::handle parameters, size_t first_number) {
  NamedTensors all;
  for (nb::handle p : parameters) {
    if (nb::isinstance<Tensor>(p)) {
      all.emplace_back(std::to_string(first_number + all.size()), nb::cast<Tensor>(p));
    } else {
      all.push_back(nb::cast<std::pair<std::string, Tensor>>(p));
    }
    check_writable("optimizer", all.back().second);
  }
  return all;
}

double option_of(nb::handle value) {
  return PyBool_Check(value.ptr()) ? nb::cast<bool>(value) : nb::cast<double>(value);
}

/// What PyTorch takes for its parameters: tensors, named ones, or dicts of "params" and options.
optim::ParameterGroups groups_of(nb::handle parameters) {
  std::vector<optim::ParameterGroup> groups;
  std::vector<nb::object> items;
  for (nb::handle item : parameters) items.push_back(nb::borrow(item));
  const bool are_groups = !items.empty() && nb::isinstance<nb::dict>(items[0]);
  if (!are_groups) {
    WEFT_CHECK(!items.empty(), "optimizer: expected at least one parameter");
    return std::vector{optim::ParameterGroup{.parameters = parameters_of(nb::cast(items), 0)}};
  }
  size_t number = 0;
  for (const nb::object& item : items) {
    optim::ParameterGroup group;
    for (const auto& [key, value] : nb::cast<nb::dict>(item)) {
      const auto name = nb::cast<std::string>(key);
      if (name == "params") {
        group.parameters = parameters_of(value, number);
      } else if (name == "betas") {
        std::tie(group.options["beta1"], group.options["beta2"]) =
            nb::cast<std::pair<double, double>>(value);
      } else {
        group.options[name] = option_of(value);
      }
    }
    number += group.parameters.size();
    groups.push_back(std::move(group));
  }
  return groups;
}

/// A group of an optimizer, as a mapping of its options.
struct Group {
  nb::object owner;
  Optimizer* optimizer;
  size_t index;
  optim::ParameterGroup& get() const { return optimizer->groups()[index]; }
};

void bind_optimizer(nb::module_& m) {
  nb::class_<Group>(m, "ParameterGroup", "Parameters with their options: group[\"lr\"] = 0.1")
      .def("__getitem__",
           [](const Group& g, const std::string& option) -> nb::object {
             if (option != "params") return nb::cast(std::as_const(g.get())[option]);
             std::vector<Tensor> parameters;
             for (const auto& [name, tensor] : g.get().parameters) parameters.push_back(tensor);
             return nb::cast(parameters);
           })
      .def("__setitem__",
           [](Group& g, const std::string& option, double value) { g.get()[option] = value; })
      .def_prop_ro("options", [](const Group& g) { return g.get().options; });
  nb::class_<Optimizer>(
      m, "Optimizer",
      "Parameters in groups with their options, the state of each, and one update per step.")
      .def(
          "step", [](Optimizer& self, double gradient_scale) { return self.step(gradient_scale); },
          "gradient_scale"_a = 1.0, Unlocked(), docs("optim::Optimizer::step"))
      .def_prop_ro("was_skipped", &Optimizer::was_skipped, docs("optim::Optimizer::was_skipped"))
      .def(
          "zero_grad", [](Optimizer& self, bool) { self.zero_grad(); }, "set_to_none"_a = true,
          docs("optim::Optimizer::zero_grad"))
      .def_prop_ro("param_groups",
                   [](nb::handle_t<Optimizer> self) {
                     auto& optimizer = nb::cast<Optimizer&>(self);
                     std::vector<Group> groups;
                     for (size_t i = 0; i < optimizer.groups().size(); ++i)
                       groups.push_back({nb::borrow(self), &optimizer, i});
                     return groups;
                   })
      .def(
          "add_param_group",
          [](Optimizer& self, const nb::dict& group) {
            nb::list groups;
            groups.append(group);
            for (auto& g : groups_of(groups)) self.add_group(g);
          },
          "param_group"_a, docs("optim::Optimizer::add_group"))
      .def_prop_rw("lr", &Optimizer::lr, &Optimizer::set_lr, docs("optim::Optimizer::lr"))
      .def_prop_ro("defaults", &Optimizer::defaults, docs("optim::Optimizer::defaults"))
      .def(
          "state_dict",
          [](const Optimizer& self) {
            const optim::OptimizerState state = self.state_dict();
            nb::dict dict;
            dict["state"] = dict_of(state.tensors);
            dict["param_groups"] = object_of(state.groups);
            return dict;
          },
          docs("optim::Optimizer::state_dict"))
      .def(
          "load_state_dict",
          [](Optimizer& self, const nb::dict& state) {
            for (const char* key : {"state", "param_groups"})
              WEFT_CHECK(state.contains(key), "load_state_dict: no \"{}\" in the state", key);
            self.load_state_dict({.tensors = tensors_of(nb::cast<nb::dict>(state["state"])),
                                  .groups = json_of(state["param_groups"])});
          },
          "state_dict"_a, docs("optim::Optimizer::load_state_dict"));
  m.def(
      "make_optimizer",
      [](const std::string& name, nb::handle parameters, const nb::kwargs& options) {
        optim::Options given;
        for (const auto& [key, value] : options)
          given[nb::cast<std::string>(key)] = option_of(value);
        return optim::make_optimizer(name, groups_of(parameters), given);
      },
      "name"_a, "params"_a, "options"_a,
      "An optimizer by its name. Its options are named as in PyTorch, but for beta1 and beta2.");
  m.def("optimizer_names", &optim::optimizer_names, "What make_optimizer knows.");
  m.def("optimizer_options", &optim::optimizer_options, "name"_a,
        "What it can be told, with its defaults.");
  m.def(
      "without_decay_of_vectors",
      [](nb::handle parameters, const std::vector<std::string>& exempt) {
        nb::list groups;
        for (const auto& group :
             optim::without_decay_of_vectors(parameters_of(parameters, 0), exempt)) {
          nb::dict dict;
          dict["params"] = group.parameters;
          for (const auto& [option, value] : group.options) dict[option.c_str()] = value;
          groups.append(dict);
        }
        return groups;
      },
      "params"_a, "exempt"_a = std::vector<std::string>(), docs("optim::without_decay_of_vectors"));
}

void bind_schedules(nb::module_ m) {
  const auto schedule = [&](const char* name, auto f, const auto&... extra) {
    m.def(name, f, extra..., docs(std::string("optim::") + name));
  };
  schedule("constant", &optim::constant);
  schedule("linear", &optim::linear, "steps"_a, "start"_a, "end"_a);
  schedule("cosine", &optim::cosine, "steps"_a, "end"_a = 0.0);
  schedule("exponential", &optim::exponential, "gamma"_a);
  schedule("staircase", &optim::staircase, "every"_a, "gamma"_a = 0.1);
  schedule(
      "one_cycle",
      [](int64_t steps, double warmup_fraction, double div_factor, double final_div_factor,
         bool linear) {
        return optim::one_cycle(steps, {.warmup_fraction = warmup_fraction,
                                        .div_factor = div_factor,
                                        .final_div_factor = final_div_factor,
                                        .linear = linear});
      },
      "steps"_a, "warmup_fraction"_a = 0.3, "div_factor"_a = 25.0, "final_div_factor"_a = 1e4,
      "linear"_a = false);
  schedule("sequential", &optim::sequential, "schedules"_a, "milestones"_a);
  schedule("per_epoch", &optim::per_epoch, "schedule"_a, "steps_per_epoch"_a);
  nb::class_<optim::Scheduler>(m, "Scheduler", docs("optim::Scheduler"))
      .def(
          "__init__",
          [](optim::Scheduler* self, Optimizer& optimizer, ScheduleFunction schedule) {
            new (self) optim::Scheduler(optimizer, schedule_of("Scheduler", std::move(schedule)));
          },
          "optimizer"_a, "schedule"_a, nb::keep_alive<1, 2>())
      .def("step", &optim::Scheduler::step, docs("optim::Scheduler::step"))
      .def_prop_ro("step_count", &optim::Scheduler::step_count, "How often step() was called.")
      .def("get_last_lr", &optim::Scheduler::get_last_lr, docs("optim::Scheduler::get_last_lr"))
      .def("get_lr", &optim::Scheduler::get_last_lr, "The same, by DeepSpeed's other name.")
      .def(
          "state_dict", [](const optim::Scheduler& s) { return object_of(s.state_dict()); },
          "What load_state_dict takes.")
      .def(
          "load_state_dict",
          [](optim::Scheduler& s, nb::handle state) { s.load_state_dict(json_of(state)); },
          docs("optim::Scheduler::load_state_dict"));
}

void bind_scaler(nb::module_& m) {
  using optim::GradScaler;
  nb::class_<GradScaler>(m, "GradScaler", "Loss scaling for float16, as PyTorch's.")
      .def(
          "__init__",
          [](GradScaler* self, double init_scale, double growth_factor, double backoff_factor,
             int64_t growth_interval, bool enabled) {
            new (self) GradScaler({.init_scale = init_scale,
                                   .growth_factor = growth_factor,
                                   .backoff_factor = backoff_factor,
                                   .growth_interval = growth_interval,
                                   .enabled = enabled});
          },
          nb::kw_only(), "init_scale"_a = 65536.0, "growth_factor"_a = 2.0,
          "backoff_factor"_a = 0.5, "growth_interval"_a = 2000, "enabled"_a = true)
      .def("scale", &GradScaler::scale, "loss"_a, Unlocked(), docs("optim::GradScaler::scale"))
      .def("unscale_", &GradScaler::unscale, "optimizer"_a, Unlocked(),
           docs("optim::GradScaler::unscale"))
      .def(
          "step",
          [](GradScaler& self, Optimizer& optimizer, double gradient_scale) {
            return self.step(optimizer, gradient_scale);
          },
          "optimizer"_a, "gradient_scale"_a = 1.0, Unlocked(), docs("optim::GradScaler::step"))
      .def(
          "update",
          [](GradScaler& s, std::optional<double> scale) { scale ? s.update(*scale) : s.update(); },
          "new_scale"_a = nb::none(), docs("optim::GradScaler::update"))
      .def("get_scale", &GradScaler::get_scale, docs("optim::GradScaler::get_scale"))
      .def("is_enabled", &GradScaler::is_enabled,
           "Otherwise losses and gradients stay as they are.")
      .def(
          "state_dict", [](const GradScaler& s) { return object_of(s.state_dict()); },
          docs("optim::GradScaler::state_dict"))
      .def(
          "load_state_dict",
          [](GradScaler& s, nb::handle state) { s.load_state_dict(json_of(state)); },
          docs("optim::GradScaler::load_state_dict"));
}

}  // namespace

void bind_optim(nb::module_ m) {
  bind_optimizer(m);
  bind_schedules(m.def_submodule("schedules"));
  bind_scaler(m);
  // A tensor that stands alone is no list of its rows, which have no gradients.
  const auto of_parameters = [&]<class R, class... A>(const char* name,
                                                      R (*f)(const Tensors&, A...),
                                                      const char* text, const auto&... extra) {
    const auto of_one = [f](const Tensor& x, A... arguments) { return f({x}, arguments...); };
    m.def(name, of_one, "parameters"_a, extra..., Unlocked(), text);
    m.def(name, f, "parameters"_a, extra..., Unlocked(), text);
  };
  of_parameters("grad_norm", &optim::grad_norm, docs("optim::grad_norm"));
  of_parameters("clip_grad_norm_", &optim::clip_grad_norm, docs("optim::clip_grad_norm"),
                "max_norm"_a, "error_if_nonfinite"_a = false);
  of_parameters("clip_grad_value_", &optim::clip_grad_value, docs("optim::clip_grad_value"),
                "clip_value"_a);
}

}  // namespace weft::python
