// weft.nn: modules, in C++ and in Python alike. A class written in Python is a C++ module, too: it
// can be a child of one, be trained by an optimizer, and its state is what C++ reads and writes.
#include <nanobind/stl/shared_ptr.h>

#include <limits>

#include "nn/init.h"
#include "nn/layers.h"
#include "nn/module.h"
#include "nn/rms_norm.h"
#include "nn/rotary.h"
#include "nn/stand_in.h"
#include "python/bindings.h"
#include "python/casters.h"
#include "python/docstrings.h"
#include "python/exchange.h"
#include "python/model_call.h"
#include "python/modules.h"
#include "python/named_tensors.h"

namespace weft::python {
namespace {

using nn::Module;

Module& module_of(nb::handle self) {
  if (!nb::inst_ready(self))
    throw nb::attribute_error("a module's __init__ calls super().__init__() first");
  return nb::cast<Module&>(self);
}

/// In the object's __dict__; null: takes it out.
void store(nb::handle self, nb::handle name, PyObject* value) {
  if (PyObject_GenericSetAttr(self.ptr(), name.ptr(), value) != 0) throw nb::python_error();
}

/// Throws a TypeError for a child that C++ has made: it refers to that one, and would to nothing.
void check_replaceable(nb::handle self, std::string_view name) {
  const Module& module = module_of(self);
  const bool is_list_of_python = dynamic_cast<const Replicated*>(&module) &&  // Python has made it
                                 dynamic_cast<const nn::Sequential*>(&module);
  const bool is_of_python =
      nb::cast<nb::dict>(self.attr("__dict__")).contains(nb::str(name.data(), name.size()));
  if (!find_own(ModuleAccess::children_of(module), name) || is_list_of_python || is_of_python)
    return;
  throw type_error(
      "\"{}\" of {} is made in C++, which refers to it: expected its tensors to be changed, got "
      "another module",
      name, type_of(self));
}

/// Throws a TypeError for what is registered: C++ would go on with it, and the state have it.
void check_not_registered(nb::handle self, std::string_view name, std::string_view given) {
  const Module& module = module_of(self);
  const bool is_child = find_own(ModuleAccess::children_of(module), name);
  if (!is_child && !find_own_tensor(module, name)) return;
  throw type_error("\"{}\" of {} is registered: expected another {}, got {}", name, type_of(self),
                   is_child ? "module" : "tensor", given);
}

/// In the __dict__, where copies have it, too: names of buffers that were registered as None.
constexpr const char* kBuffersToCome = "_buffers_to_come";

bool is_buffer_to_come(nb::handle self, nb::handle name) {
  const nb::dict attributes = self.attr("__dict__");
  return attributes.contains(kBuffersToCome) &&
         nb::cast<nb::dict>(attributes[kBuffersToCome]).contains(name);
}

/// Whether a tensor was told that it requires no gradient, as nn.Parameter(x, requires_grad=False)
/// tells it: what ops and detach() return was told nothing.
bool is_frozen(const Tensor& x) {
  const AutogradMeta* const said = x.autograd();
  return said && !said->requires_grad && !said->grad_fn && !said->view && is_floating(x.dtype());
}

/// module.name = value: tensors that require a gradient, or were told that they do not, become
/// parameters, modules children. A name that is taken keeps its tensor, which takes the new one's
/// data, and is trained or frozen as that says.
void set_attribute(nb::handle self, nb::str name, nb::handle value) {
  auto& module = module_of(self);
  const std::string_view text = name.c_str();
  const Tensor x = nb::isinstance<Tensor>(value) ? nb::cast<Tensor>(value) : Tensor();
  if (x.defined()) {
    const NamedTensors& parameters = ModuleAccess::parameters_of(module);
    for (const NamedTensors* tensors : {&parameters, &ModuleAccess::buffers_of(module)}) {
      const Tensor* const own = find_own(*tensors, text);
      if (!own) continue;
      WEFT_CHECK(tensors != &parameters || !x.requires_grad() || x.autograd()->requires_grad,
                 "parameter \"{}\" of {} takes no history: expected a leaf or detach(), got the "
                 "result of a recorded op, {}",
                 text, type_of(self), x);
      Tensor kept = *own;
      kept.set_data(detach(x));
      const bool is_leaf = x.requires_grad() && x.autograd()->requires_grad;
      if (tensors == &parameters && (is_leaf || is_frozen(x))) kept.set_requires_grad(is_leaf);
      return store(self, name, nb::cast(kept).ptr());  // replicas look at each call
    }
  }
  if (!nb::isinstance<Module>(value)) check_not_registered(self, text, type_of(value));
  const Followers followers(module, value);
  if (nb::isinstance<Module>(value)) {
    const auto child = nb::cast<std::shared_ptr<Module>>(value);
    for (const auto& [path, below] : child->named_modules()) {
      if (below == &module) throw value_error("\"{}\" would contain itself", text);
    }
    check_replaceable(self, text);
    ModuleAccess::set_child_of(module, text, child);
  } else if (x.defined() && x.requires_grad() && x.autograd()->requires_grad) {
    ModuleAccess::parameter_of(module, text, x);
  } else if (x.defined() && is_frozen(x) && !is_buffer_to_come(self, name)) {
    ModuleAccess::parameter_of(module, text, x);
    Tensor(x).set_requires_grad(false);
  } else if (x.defined() && is_buffer_to_come(self, name)) {
    ModuleAccess::buffer_of(module, text, x);
  }
  store(self, name, value.ptr());
  followers.set([&](nb::handle part, nb::handle copy) { nb::setattr(part, name, copy); });
}

void delete_attribute(nb::handle self, nb::str name) {
  check_not_registered(self, name.c_str(), "del");
  const Followers followers(module_of(self), nb::none());
  store(self, name, nullptr);
  followers.set([&](nb::handle part, nb::handle) {
    if (PyObject_DelAttr(part.ptr(), name.ptr()) == 0) return;
    if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) throw nb::python_error();
    PyErr_Clear();  // it had none
  });
}

/// Of tensors and children that C++ registered.
nb::object get_attribute(nb::handle self, nb::str name) {
  const auto& module = module_of(self);
  const std::string_view text = name.c_str();
  if (const auto* child = find_own(ModuleAccess::children_of(module), text)) {
    return nb::cast(*child);
  }
  if (const Tensor* tensor = find_own_tensor(module, text)) return nb::cast(*tensor);
  throw nb::attribute_error(fmt::format("{} has no attribute \"{}\"", type_of(self), text).c_str());
}

nb::object call(nb::handle self, const nb::args& arguments, const nb::kwargs& options) {
  auto& module = nb::cast<Module&>(self);
  if (module.has_route()) return call_set_up(self, arguments, options);
  if (module.has_stand_in()) return call_stand_in(self, arguments, options);
  module.check_call();
  return self.attr("forward")(*arguments, **options);
}

/// A layer with its forward(). `arguments` are those of a constructor that makes another one like
/// it, for copies; `text` is its docstring, where the header's on nn::NAME does not do.
template <class Layer, class Arguments>
nb::class_<Layer, Module, Derivable<Layer>> layer(nb::module_& m, const char* name,
                                                  Arguments arguments, const char* text = nullptr) {
  nb::class_<Layer, Module, Derivable<Layer>> c(m, name, nb::dynamic_attr(),
                                                text ? text : docs(std::string("nn::") + name));
  c.def(
      "forward",
      [](Layer& self, const Tensor& x) {
        self.check_call();
        return nn::is_passed_by(self) ? self.unrouted(x) : self.Layer::forward(x);
      },
      "input"_a, Unlocked(), docs("nn::Module::forward"));
  c.def("_arguments", arguments);
  return c;
}

/// Of a layer without any.
constexpr auto kNone = [](const Module&) { return nb::tuple(); };

void bind_module(nb::module_& m) {
  const auto registers = [](const char* method, bool is_buffer,
                            void (*add)(Module&, std::string_view, const Tensor&)) {
    return [=](nb::handle_t<Module> self, const nb::str& name, const MaybeTensor& tensor) {
      auto& module = nb::cast<Module&>(self);
      const nb::object value = nb::cast(tensor);
      const Followers followers(module, value);
      add(module, name.c_str(), tensor);
      if (is_buffer && value.is_none()) {
        const nb::object known =
            self.attr("__dict__").attr("setdefault")(kBuffersToCome, nb::dict());
        known[name] = value;
      }
      store(self, name, value.ptr());
      followers.set([&](nb::handle part, nb::handle copy) {
        const auto& theirs = nb::cast<const Module&>(part);
        // What its forward() has registered takes the model's data.
        const bool is_there = find_own_tensor(theirs, name.c_str());
        is_there ? nb::setattr(part, name, copy) : void(part.attr(method)(name, copy));
      });
    };
  };
  nb::class_<Module, Derivable<Module>> module(
      m, "Module", nb::dynamic_attr(),
      "A tree of layers with named parameters and buffers. Subclasses call super().__init__(), "
      "assign parameters and children to their attributes, and define forward(); and structure(), "
      "where a strategy asks for it.");
  module.def(nb::init<>())
      .def(
          "forward", [](Module& self, const Tensor& x) { return self.Module::forward(x); },
          "input"_a, docs("nn::Module::forward"))
      .def("__call__", &call)
      .def("_check_call", &Module::check_call)
      .def("__setattr__", &set_attribute, "name"_a, nb::arg("value").none())
      .def("__delattr__", &delete_attribute, "name"_a)
      .def("__getattr__", &get_attribute, "name"_a)
      .def("register_buffer", registers("register_buffer", true, &ModuleAccess::buffer_of),
           "name"_a, nb::arg("tensor").none(),
           fmt::format("{}\n\nNone: the tensor that is assigned to the name later is the buffer.",
                       docs("nn::Module::buffer"))
               .c_str())
      .def("register_parameter",
           registers("register_parameter", false, &ModuleAccess::parameter_of), "name"_a,
           nb::arg("tensor").none(), docs("nn::Module::parameter"))
      .def(
          "add_module",
          [](nb::handle_t<Module> self, const std::string& name, nb::handle_t<Module> child) {
            nb::setattr(self, name.c_str(), child);
          },
          "name"_a, "module"_a, "Another module as a child, which is also an attribute.")
      .def("named_parameters", &Module::named_parameters, docs("nn::Module::named_parameters"))
      .def("parameters", &Module::parameters, docs("nn::Module::named_parameters"))
      .def("named_buffers", &Module::named_buffers,
           "Tensors that are saved but not trained, each once, under its first name.")
      .def("named_modules", &owned_modules, docs("nn::Module::named_modules"))
      .def(
          "modules",
          [](const std::shared_ptr<Module>& self) {
            std::vector<std::shared_ptr<Module>> all;
            for (auto& [name, module] : owned_modules(self)) all.push_back(std::move(module));
            return all;
          },
          docs("nn::Module::named_modules"))
      .def(
          "named_children", [](Module& self) { return ModuleAccess::children_of(self); },
          "The modules right below this one, with their names.")
      .def(
          "children",
          [](Module& self) {
            std::vector<std::shared_ptr<Module>> all;
            for (auto& [name, module] : ModuleAccess::children_of(self)) all.push_back(module);
            return all;
          },
          "The modules right below this one.")
      .def("num_parameters", &Module::num_parameters, "Elements of all parameters.")
      .def(
          "state_dict", [](const Module& self) { return dict_of(self.state_dict()); },
          docs("nn::Module::state_dict"))
      .def(
          "load_state_dict",
          [](Module& self, const nb::dict& state, bool strict) {
            for (const auto& [name, tensor] : self.unrouted_state()) {
              check_writable("load_state_dict", tensor);
            }
            const nn::LoadResult result =
                self.load_state_dict(tensors_of(state), {.strict = strict});
            return std::pair(result.missing, result.unexpected);
          },
          "state_dict"_a, "strict"_a = true,
          fmt::format("{}\n\nReturns the (missing, unexpected) keys, where not strict.",
                      docs("nn::Module::load_state_dict"))
              .c_str())
      .def("train", on_self<Module, bool>(&Module::train), "mode"_a = true,
           "Training, as dropout and batch norm do it, or evaluation.")
      .def("eval", on_self<Module>(&Module::eval), "train(False)")
      .def_prop_ro("training", &Module::is_training)
      .def(
          "to",
          [](nb::handle_t<Module> self, const nb::args& where) {
            auto& module = nb::cast<Module&>(self);
            for (nb::handle argument : where) {
              DType dtype;
              if (read_dtype(argument, dtype)) {
                module.to(dtype);
              } else {
                module.to(*nb::cast<MaybeDevice>(argument));
              }
            }
            return nb::borrow(self);
          },
          "where"_a, docs("nn::Module::to"))
      .def("zero_grad", &Module::zero_grad, docs("nn::Module::zero_grad"))
      .def("requires_grad_", on_self<Module, bool>(&Module::requires_grad_),
           "requires_grad"_a = true, docs("nn::Module::requires_grad_"))
      .def(
          "apply",
          [](const std::shared_ptr<Module>& self, const nb::callable& function) {
            for (const auto& [name, module] : owned_modules(self)) function(nb::cast(module));
            return self;
          },
          "fn"_a, "Calls the function with this module and each of its descendants.");
  bind_structures(m, module);
}

using MaybeSize2d = std::optional<nn::Size2d>;

void bind_pools(nb::module_& m) {
  using nn::Size2d;
  layer<nn::MaxPool2d>(
      m, "MaxPool2d",
      [](const nn::MaxPool2d& l) {
        return nb::make_tuple(l.options.kernel, l.options.stride, l.options.padding,
                              l.options.dilation, l.options.ceil_mode);
      },
      docs("ops::max_pool2d"))
      .def(
          "__init__",
          [](nn::MaxPool2d* self, Size2d kernel, MaybeSize2d stride, Size2d padding,
             Size2d dilation, bool ceil_mode) {
            new (self) Derivable<nn::MaxPool2d>(kernel, stride, padding, true, dilation, ceil_mode);
          },
          "kernel_size"_a, "stride"_a = nb::none(), "padding"_a = Size2d(0),
          "dilation"_a = Size2d(1), "ceil_mode"_a = false);
  layer<nn::AvgPool2d>(
      m, "AvgPool2d",
      [](const nn::AvgPool2d& l) {
        return nb::make_tuple(l.options.kernel, l.options.stride, l.options.padding,
                              l.options.ceil_mode, l.options.count_include_pad);
      },
      docs("ops::avg_pool2d"))
      .def(
          "__init__",
          [](nn::AvgPool2d* self, Size2d kernel, MaybeSize2d stride, Size2d padding, bool ceil_mode,
             bool count_include_pad) {
            new (self)
                Derivable<nn::AvgPool2d>(kernel, stride, padding, count_include_pad, 1, ceil_mode);
          },
          "kernel_size"_a, "stride"_a = nb::none(), "padding"_a = Size2d(0), "ceil_mode"_a = false,
          "count_include_pad"_a = true);
}

void bind_layers(nb::module_& m) {
  layer<nn::Linear>(m, "Linear", [](const nn::Linear& l) {
    return nb::make_tuple(l.weight.size(1), l.weight.size(0), l.bias.defined());
  }).def(nb::init<int64_t, int64_t, bool>(), "in_features"_a, "out_features"_a, "bias"_a = true);
  layer<nn::LayerNorm>(
      m, "LayerNorm",
      [](const nn::LayerNorm& l) { return nb::make_tuple(l.weight.size(0), l.eps); })
      .def(
          "__init__",
          [](nn::LayerNorm* self, const Shape& shape, double eps) {
            WEFT_CHECK(shape.size() == 1, "LayerNorm: one dimension is normalised, got {}", shape);
            new (self) Derivable<nn::LayerNorm>(shape[0], eps);
          },
          "normalized_shape"_a, "eps"_a = 1e-5);
  layer<nn::RmsNorm>(
      m, "RMSNorm", [](const nn::RmsNorm& l) { return nb::make_tuple(l.weight.size(0), l.eps); },
      fmt::format("{}\n\nWithout an eps that of PyTorch for float32, 2^-23. Throws Error for "
                  "another width.\n\nZhang, Sennrich, \"Root Mean Square Layer "
                  "Normalization\", arXiv:1910.07467.",
                  docs("nn::RmsNorm"))
          .c_str())
      .def(
          "__init__",
          [](nn::RmsNorm* self, const Shape& shape, std::optional<double> eps) {
            WEFT_CHECK(shape.size() == 1, "RMSNorm: one dimension is normalised, got {}", shape);
            new (self) Derivable<nn::RmsNorm>(shape[0],
                                              eps.value_or(std::numeric_limits<float>::epsilon()));
          },
          "normalized_shape"_a, "eps"_a = nb::none());
  layer<nn::BatchNorm2d>(m, "BatchNorm2d", [](const nn::BatchNorm2d& l) {
    return nb::make_tuple(l.weight.size(0), l.eps, l.momentum);
  }).def(nb::init<int64_t, double, double>(), "num_features"_a, "eps"_a = 1e-5, "momentum"_a = 0.1);
  layer<nn::Conv2d>(m, "Conv2d",
                    [](const nn::Conv2d& l) {
                      return nb::make_tuple(l.weight.size(1) * l.options.groups, l.weight.size(0),
                                            nn::Size2d(l.weight.size(2), l.weight.size(3)),
                                            l.options.stride, l.options.padding, l.options.dilation,
                                            l.options.groups, l.bias.defined());
                    })
      .def(
          "__init__",
          [](nn::Conv2d* self, int64_t in, int64_t out, nn::Size2d kernel, nn::Size2d stride,
             nn::Size2d padding, nn::Size2d dilation, int64_t groups, bool bias) {
            new (self) Derivable<nn::Conv2d>(
                in, out, kernel,
                nn::Conv2dOptions{
                    .stride = stride, .padding = padding, .dilation = dilation, .groups = groups},
                bias);
          },
          "in_channels"_a, "out_channels"_a, "kernel_size"_a, "stride"_a = nn::Size2d(1),
          "padding"_a = nn::Size2d(0), "dilation"_a = nn::Size2d(1), "groups"_a = 1,
          "bias"_a = true);
  layer<nn::Embedding>(m, "Embedding", [](const nn::Embedding& l) {
    return nb::make_tuple(l.weight.size(0), l.weight.size(1));
  }).def(nb::init<int64_t, int64_t>(), "num_embeddings"_a, "embedding_dim"_a);
  layer<nn::Dropout>(m, "Dropout", [](const nn::Dropout& l) {
    return nb::make_tuple(l.p);
  }).def(nb::init<double>(), "p"_a = 0.5);
  layer<nn::DropPath>(m, "DropPath", [](const nn::DropPath& l) {
    return nb::make_tuple(l.p);
  }).def(nb::init<double>(), "p"_a);
  layer<nn::GELU>(m, "GELU",
                  [](const nn::GELU& l) {
                    return nb::make_tuple(l.form == ops::Gelu::kTanh ? "tanh" : "none");
                  })
      .def(
          "__init__",
          [](nn::GELU* self, const std::string& approximate) {
            WEFT_CHECK(approximate == "none" || approximate == "tanh",
                       "GELU: approximate is \"none\" or \"tanh\", got \"{}\"", approximate);
            new (self)
                Derivable<nn::GELU>(approximate == "tanh" ? ops::Gelu::kTanh : ops::Gelu::kErf);
          },
          "approximate"_a = "none");
  layer<nn::ReLU>(m, "ReLU", kNone, docs("ops::relu")).def(nb::init<>());
  layer<nn::SiLU>(m, "SiLU", kNone, docs("ops::silu")).def(nb::init<>());
  layer<nn::Tanh>(m, "Tanh", kNone, docs("ops::tanh")).def(nb::init<>());
  bind_pools(m);
  layer<nn::Flatten>(m, "Flatten", [](const nn::Flatten& l) {
    return nb::make_tuple(l.first, l.last);
  }).def(nb::init<int64_t, int64_t>(), "start_dim"_a = 1, "end_dim"_a = -1);
  layer<nn::Identity>(m, "Identity", kNone).def(nb::init<>());
  layer<nn::MultiheadAttention>(m, "MultiheadAttention",
                                [](const nn::MultiheadAttention& l) {
                                  return nb::make_tuple(l.out_proj.weight.size(0), l.heads,
                                                        l.options.dropout, l.in_proj_bias.defined(),
                                                        l.options.causal);
                                })
      .def(
          "__init__",
          [](nn::MultiheadAttention* self, int64_t width, int64_t heads, double dropout, bool bias,
             bool causal) {
            new (self) Derivable<nn::MultiheadAttention>(
                width, heads, nn::AttentionOptions{.causal = causal, .dropout = dropout}, bias);
          },
          "embed_dim"_a, "num_heads"_a, "dropout"_a = 0.0, "bias"_a = true, "causal"_a = false);
  layer<nn::Sequential>(m, "Sequential", kNone)
      .def("__init__",
           [](nn::Sequential* self, const nb::args& modules) {
             new (self) Derivable<nn::Sequential>();
             int number = 0;
             for (nb::handle module : modules) {
               ModuleAccess::set_child_of(*self, std::to_string(number++),
                                          nb::cast<std::shared_ptr<Module>>(module));
             }
           })
      .def(
          "append",
          [](nb::handle_t<nn::Sequential> self, nb::handle_t<Module> module) {
            const int64_t size = nb::cast<nn::Sequential&>(self).size();
            nb::setattr(self, std::to_string(size).c_str(), module);
            return nb::borrow(self);
          },
          "module"_a, "Another module behind the last one.")
      .def(
          "structure", [](nn::Sequential& self) { return self.nn::Sequential::structure(); },
          nb::keep_alive<0, 1>(), docs("nn::Sequential::structure"))
      .def("__len__", &nn::Sequential::size)
      .def("__getitem__", [](nn::Sequential& self, int64_t i) {
        const auto& children = ModuleAccess::children_of(self);
        const int64_t size = self.size();
        if (i < -size || i >= size)
          throw nb::index_error(fmt::format("index {} of {} modules", i, size).c_str());
        return children[i < 0 ? i + size : i].second;
      });
}

void bind_rotary(nb::module_& m) {
  using nn::RotaryPositions;
  nb::class_<RotaryPositions>(
      m, "RotaryPositions",
      "Queries and keys are turned by angles that grow with their position, so that their products "
      "depend on the distance alone. With width D, i in [0, D/2) and w_i = base^(-2i/D):\n\n"
      "y[t, i] = x[t, i] cos(t w_i) - x[t, i + D/2] sin(t w_i)\n"
      "y[t, i + D/2] = x[t, i + D/2] cos(t w_i) + x[t, i] sin(t w_i)\n\n"
      "The pairs are made of the two halves, as in GPT-NeoX and Llama. It has no parameters, and "
      "is no module. Throws Error unless the width is even and all three are positive.\n\n"
      "Su et al., \"RoFormer\", arXiv:2104.09864, section 3.4.2.")
      .def(nb::init<int64_t, int64_t, double>(), "positions"_a, "width"_a, "base"_a = 10000.0)
      .def("rotate", &RotaryPositions::rotate, "x"_a, "first"_a = 0, Unlocked(),
           docs("nn::RotaryPositions::rotate"))
      .def(
          "__deepcopy__", [](nb::handle_t<RotaryPositions> self, nb::handle) { return self; },
          "memo"_a, "Itself: it does not change.");
}

void bind_init(nb::module_ m) {
  const auto init = [&]<class T, class... A>(const std::string& name, Tensor (*f)(T, A...),
                                             const auto&... extra) {
    const auto checked = [f, name](const Tensor& x, A... arguments) {
      check_writable(name + "_", x);
      return f(x, arguments...);
    };
    m.def((name + "_").c_str(), checked, "tensor"_a, docs("nn::init::" + name), extra...);
  };
  init("zeros", &nn::init::zeros);
  init("ones", &nn::init::ones);
  init("constant", &nn::init::constant, "val"_a);
  init("uniform", &nn::init::uniform, "a"_a = 0.0, "b"_a = 1.0);
  init("normal", &nn::init::normal, "mean"_a = 0.0, "std"_a = 1.0);
  init("trunc_normal", &nn::init::trunc_normal, "mean"_a = 0.0, "std"_a = 1.0, "a"_a = -2.0,
       "b"_a = 2.0);
  init("xavier_uniform", &nn::init::xavier_uniform, "gain"_a = 1.0);
  init("kaiming_uniform", &nn::init::kaiming_uniform, "a"_a = 0.0);
  init(
      "kaiming_normal",
      +[](const Tensor& x, const std::string& mode) {
        WEFT_CHECK(mode == "fan_in" || mode == "fan_out",
                   "kaiming_normal_: mode is fan_in or fan_out, got \"{}\"", mode);
        return nn::init::kaiming_normal(
            x, mode == "fan_in" ? nn::init::Fan::kIn : nn::init::Fan::kOut);
      },
      nb::kw_only(), "mode"_a = "fan_in");
}

}  // namespace

void bind_nn(nb::module_& m) {
  nb::module_ nn = m.def_submodule("nn");
  bind_module(nn);
  bind_layers(nn);
  bind_rotary(nn);
  bind_dispatch(nn);
  bind_init(m.def_submodule("init"));
}

}  // namespace weft::python
