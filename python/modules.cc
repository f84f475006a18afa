// weft.nn.ModelStructure, and copies of modules.
#include "python/modules.h"

#include <nanobind/stl/shared_ptr.h>

#include <algorithm>
#include <optional>
#include <ranges>
#include <unordered_set>

#include "autograd/random.h"
#include "core/scoped_value.h"
#include "nn/layers.h"
#include "nn/meta.h"
#include "python/bindings.h"
#include "python/containers.h"
#include "train/fabric.h"

namespace weft::python {
namespace {

using nn::ModelStructure;
using nn::Module;
using nn::Segment;

/// An object that C++ copies and drops without the interpreter's lock.
using Kept = std::shared_ptr<nb::object>;

Kept keep(nb::object object) {
  return {new nb::object(std::move(object)), [](nb::object* kept) {
            const nb::gil_scoped_acquire locked;
            delete kept;
          }};
}

/// A function of Python's as a segment's.
struct SegmentFunction {
  std::string segment;
  Kept function;
  PyObject* self = nullptr;  // of a method of the model, which holds this, and not the other way

  Tensor operator()(const Tensor& x) const {
    const nb::gil_scoped_acquire locked;
    const nb::object y = self ? (*function)(nb::handle(self), x) : (*function)(x);
    if (nb::isinstance<Tensor>(y)) return nb::cast<Tensor>(y);
    throw type_error("segment \"{}\": expected a tensor from its function, got {}", segment,
                     type_of(y));
  }
  nb::object object() const {
    return self ? nb::steal(PyMethod_New(function->ptr(), self)) : *function;
  }
};

std::function<Tensor(const Tensor&)> forward_of(const std::string& segment, nb::handle function) {
  if (nb::isinstance<Module>(function)) {
    return [module = nb::cast<std::shared_ptr<Module>>(function)](const Tensor& x) {
      return (*module)(x);
    };
  }
  if (PyCallable_Check(function.ptr()) == 0) {
    throw type_error("segment \"{}\": forward: expected a module or a function of a tensor, got {}",
                     segment, type_of(function));
  }
  return SegmentFunction{segment, keep(nb::borrow(function))};
}

/// Classes, one or several, or a function of a module's name and the module.
nn::WrapPolicy units_of(nb::handle given) {
  if (given.is_none()) return {};
  const auto decide = [](const Kept& what, auto question) -> nn::WrapPolicy {
    return [what, question](const std::string& name, Module& module) {
      const nb::gil_scoped_acquire locked;
      return question(*what, name, nb::cast(&module, nb::rv_policy::reference));
    };
  };
  const bool is_list = nb::isinstance<nb::list>(given) || nb::isinstance<nb::tuple>(given);
  if (is_list || PyType_Check(given.ptr())) {
    const nb::tuple classes = is_list ? nb::tuple(nb::borrow(given)) : nb::make_tuple(given);
    for (nb::handle one : classes) {
      if (PyType_Check(one.ptr())) continue;
      throw type_error("units: expected classes, got {}", nb::repr(one).c_str());
    }
    return decide(keep(classes),
                  [](const nb::object& all, const std::string&, const nb::object& module) {
                    const int is_one = PyObject_IsInstance(module.ptr(), all.ptr());
                    if (is_one < 0) throw nb::python_error();
                    return is_one == 1;
                  });
  }
  if (PyCallable_Check(given.ptr()) == 0) {
    throw type_error(
        "units: expected classes of modules, or a function of a name and a module, got {}",
        type_of(given));
  }
  return decide(keep(nb::borrow(given)),
                [](const nb::object& f, const std::string& name, const nb::object& module) {
                  const int is_one = PyObject_IsTrue(f(name, module).ptr());
                  if (is_one < 0) throw nb::python_error();
                  return is_one == 1;
                });
}

std::function<std::shared_ptr<Module>()> replica_of(nb::handle function) {
  if (function.is_none()) return {};
  return [kept = keep(nb::borrow(function))] {
    const nb::gil_scoped_acquire locked;
    const nb::object made = (*kept)();
    if (nb::isinstance<Module>(made)) return nb::cast<std::shared_ptr<Module>>(made);
    throw type_error("replica: expected a module from its function, got {}", type_of(made));
  };
}

using Pairs = std::vector<std::pair<nn::Linear*, nn::Linear*>>;

/// The parts that a structure names, with what they are there.
std::vector<std::pair<std::string, const Module*>> parts_of(const ModelStructure& structure) {
  std::vector<std::pair<std::string, const Module*>> parts;
  for (const auto& [first, second] : structure.mlps) {
    parts.emplace_back("mlps", first);
    parts.emplace_back("mlps", second);
  }
  for (const nn::ParallelLinears& layers : structure.linears) {
    for (const Module* column : layers.columns) parts.emplace_back("linears", column);
    parts.emplace_back("linears", layers.rows);
  }
  parts.emplace_back("head", structure.head);
  parts.emplace_back("tokens.begin", structure.tokens.begin);
  parts.emplace_back("tokens.end", structure.tokens.end);
  for (const Module* part : structure.tokens.between) parts.emplace_back("tokens.between", part);
  std::erase_if(parts, [](const auto& part) { return part.second == nullptr; });
  return parts;
}

void bind_structure(nb::module_& m) {
  nb::class_<Segment>(
      m, "Segment",
      "A part of a model that hands one tensor to the next. The model is the chain of its "
      "segments: `for segment in segments: x = segment.forward(x)`.\n\nforward is a module or a "
      "function of one tensor. owns names the parameters, buffers and modules that are the "
      "segment's own; by default that of its name. reads names tensors of other segments that it "
      "needs, too, as a head does that is tied to an embedding.")
      .def(
          "__init__",
          [](Segment* self, const std::string& name, nb::handle forward,
             const std::optional<std::vector<std::string>>& owns, std::vector<std::string> reads) {
            new (self) Segment{name, forward_of(name, forward), owns.value_or(std::vector{name}),
                               std::move(reads)};
          },
          "name"_a, "forward"_a, "owns"_a = nb::none(), "reads"_a = std::vector<std::string>())
      .def_ro("name", &Segment::name)
      .def_prop_ro("forward",
                   [](const Segment& self) {
                     const auto* const own = self.forward.target<SegmentFunction>();
                     return own ? own->object() : nb::cast(self.forward);
                   })
      .def_ro("owns", &Segment::owns)
      .def_ro("reads", &Segment::reads)
      .def("__repr__", [](const Segment& self) {
        return fmt::format("Segment(\"{}\", owns={})", self.name,
                           nb::repr(nb::cast(self.owns)).c_str());
      });
  nb::class_<nn::ParallelLinears>(
      m, "ParallelLinears",
      "Layers that tp cuts together: `columns`, each an nn.Linear of the same tensor, of whose "
      "features each rank makes a part, and `rows`, the nn.Linear that takes what is made of them, "
      "element by element: a gated MLP. Of attention there is one column, whose features are those "
      "of `heads` of q, then of `kv_heads` of k and of v; forward() tells by their number how many "
      "heads it has. Shoeybi et al., arXiv:1909.08053.")
      .def(
          "__init__",
          [](nn::ParallelLinears* self, std::vector<nn::Linear*> columns, nn::Linear& rows,
             int64_t heads, std::optional<int64_t> kv_heads) {
            new (self)
                nn::ParallelLinears{std::move(columns), &rows, heads, kv_heads.value_or(heads)};
          },
          "columns"_a, "rows"_a, "heads"_a = 0, "kv_heads"_a = nb::none(), nb::keep_alive<1, 2>(),
          nb::keep_alive<1, 3>())
      .def_ro("columns", &nn::ParallelLinears::columns, nb::rv_policy::reference_internal)
      .def_ro("rows", &nn::ParallelLinears::rows, nb::rv_policy::reference_internal)
      .def_ro("heads", &nn::ParallelLinears::heads)
      .def_ro("kv_heads", &nn::ParallelLinears::kv_heads);
  nb::class_<nn::TokenRegion>(
      m, "TokenRegion",
      "The part of a model between two modules whose activations [..., tokens, width] may be dealt "
      "out along the tokens: what `begin` is called on is dealt out, what `end` returns is put "
      "together. `between` are the modules that work on dealt-out tokens; `end` may contain them. "
      "count: tokens of a sample, 0 where it is not known.")
      .def(
          "__init__",
          [](nn::TokenRegion* self, Module& begin, Module& end, std::vector<Module*> between,
             int64_t count) {
            new (self) nn::TokenRegion{&begin, &end, std::move(between), count};
          },
          "begin"_a, "end"_a, "between"_a, "count"_a = 0, nb::keep_alive<1, 2>(),
          nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
      .def_ro("begin", &nn::TokenRegion::begin, nb::rv_policy::reference_internal)
      .def_ro("end", &nn::TokenRegion::end, nb::rv_policy::reference_internal)
      .def_ro("between", &nn::TokenRegion::between, nb::rv_policy::reference_internal)
      .def_ro("count", &nn::TokenRegion::count);
  nb::class_<ModelStructure>(
      m, "ModelStructure",
      "What a model says of itself, by a method structure(), to those who share it out over "
      "devices. What is left out it does not have, and a strategy that needs it says so.\n\n"
      "units: classes of modules, or a function of a module's name and the module, that are "
      "unsharded together: fsdp, zero, hsdp.\n"
      "mlps: pairs of nn.Linear, the second on what is made, element by element, of the first's "
      "features: tp cuts both, and every nn.MultiheadAttention. Shoeybi et al., arXiv:1909.08053.\n"
      "linears: ParallelLinears, which tp cuts as well: gated MLPs, attention of nn.Linear.\n"
      "tokens: a TokenRegion, for sequence_parallel. Korthikanti et al., arXiv:2205.05198.\n"
      "head: the last nn.Linear, on the classes, for parallel_head.\n"
      "segments: the model as a chain; each parameter and buffer belongs to one of them: pipeline, "
      "and models larger than memory.\n"
      "replica: a function that makes another of the same architecture: dp. Without one the model "
      "is copied by copy.deepcopy().\n\n"
      "Under dp an attribute of a module, of a class written in Python, that is assigned, "
      "registered or deleted after setup() is so in the replicas, too: assigned by "
      "copy.deepcopy(), and itself where it cannot be copied, an Error where it holds modules or "
      "tensors that require a gradient; one that is changed in place is not. "
      "Each replica keeps what its forward() stores in self. Of the first's, which has the first "
      "part of the batch, the model gets buffers of its own, and numbers and texts that are "
      "assigned, also in tuples, lists, dicts and dataclasses, and loses what is deleted.")
      .def(
          "__init__",
          [](ModelStructure* self, nb::handle units, Pairs mlps,
             const std::optional<nn::TokenRegion>& tokens, nn::Linear* head, nn::Segments segments,
             nb::handle replica, std::vector<nn::ParallelLinears> linears) {
            new (self) ModelStructure(units_of(units));
            self->mlps = std::move(mlps);
            self->linears = std::move(linears);
            if (tokens) self->tokens = *tokens;
            self->head = head;
            self->segments = std::move(segments);
            self->replica = replica_of(replica);
          },
          nb::kw_only(), "units"_a = nb::none(), "mlps"_a = Pairs(), "tokens"_a = nb::none(),
          "head"_a.none() = nb::none(), "segments"_a = nn::Segments(), "replica"_a = nb::none(),
          "linears"_a = std::vector<nn::ParallelLinears>(), nb::keep_alive<1, 3>(),
          nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(), nb::keep_alive<1, 8>())
      .def_prop_rw(
          "units",
          [](const ModelStructure& self)
              -> std::optional<std::function<bool(std::string, Module*)>> {
            if (!self.units) return {};
            return [units = self.units](const std::string& name, Module* module) {
              return units(name, *module);
            };
          },
          [](ModelStructure& self, nb::handle units) { self.units = units_of(units); },
          nb::for_setter(nb::arg("units").none()))
      .def_rw("mlps", &ModelStructure::mlps, nb::rv_policy::reference_internal,
              nb::for_setter(nb::keep_alive<1, 2>()))
      .def_rw("linears", &ModelStructure::linears, nb::for_setter(nb::keep_alive<1, 2>()))
      .def_prop_rw(
          "tokens",
          [](const ModelStructure& self) -> std::optional<nn::TokenRegion> {
            if (!self.tokens.begin) return {};
            return self.tokens;
          },
          [](ModelStructure& self, const std::optional<nn::TokenRegion>& tokens) {
            self.tokens = tokens.value_or(nn::TokenRegion());
          },
          nb::for_getter(nb::keep_alive<0, 1>()), nb::for_setter(nb::arg("tokens").none()),
          nb::for_setter(nb::keep_alive<1, 2>()))
      .def_prop_rw(
          "head", [](const ModelStructure& self) { return self.head; },
          [](ModelStructure& self, nn::Linear* head) { self.head = head; },
          nb::rv_policy::reference_internal, nb::for_setter(nb::arg("head").none()),
          nb::for_setter(nb::keep_alive<1, 2>()))
      .def_rw("segments", &ModelStructure::segments)
      .def_prop_rw(
          "replica",
          [](const ModelStructure& self)
              -> std::optional<std::function<std::shared_ptr<Module>()>> {
            if (!self.replica) return {};
            return self.replica;
          },
          [](ModelStructure& self, nb::handle replica) { self.replica = replica_of(replica); },
          nb::for_setter(nb::arg("replica").none()));
}

}  // namespace

std::string name_of_class(nb::handle object) {
  const nb::gil_scoped_acquire locked;
  const nb::handle type = object.type();
  return fmt::format("{}.{}", nb::str(type.attr("__module__")).c_str(),
                     nb::str(type.attr("__qualname__")).c_str());
}

Tensor tensor_of_forward(nb::handle module, const nb::object& returned) {
  if (nb::isinstance<Tensor>(returned)) return nb::cast<Tensor>(returned);
  throw type_error(
      "{}.forward(): expected a tensor, got a {}: what has called it, a Sequential, a segment, "
      "fabric.forward(x), a Trainer's own steps, or the strategies dp and pipeline, hands on one "
      "tensor alone; return one, or call model(...) under another strategy, such as ddp, fsdp or "
      "tp, which hands on any",
      type_of(module), type_of(returned));
}

OwnedModules owned_modules(const std::shared_ptr<Module>& root) {
  OwnedModules all, pending = {{"", root}};
  while (!pending.empty()) {
    auto [name, module] = std::move(pending.back());
    pending.pop_back();
    for (const auto& [child_name, child] :
         std::views::reverse(ModuleAccess::children_of(*module))) {
      pending.emplace_back(name.empty() ? child_name : name + "." + child_name, child);
    }
    all.emplace_back(std::move(name), std::move(module));
  }
  return all;
}

namespace {

/// Of a module that somebody else keeps, as Python does its self.
std::shared_ptr<Module> unowned(Module& module) { return {std::shared_ptr<void>(), &module}; }

/// The module of that name in a model; null: there is none.
std::shared_ptr<Module> part_at(std::shared_ptr<Module> part, std::string_view path) {
  while (part && !path.empty()) {
    const std::string_view name = path.substr(0, path.find('.'));
    path.remove_prefix(std::min(name.size() + 1, path.size()));
    const auto* const child = find_own(ModuleAccess::children_of(*part), name);
    part = child ? *child : nullptr;
  }
  return part;
}

}  // namespace

ModelStructure read_structure(nb::handle module, nb::handle returned) {
  const std::string method = type_of(module) + std::string(".structure()");
  if (!nb::isinstance<ModelStructure>(returned)) {
    throw type_error("{}: expected a weft.nn.ModelStructure, got {}", method, type_of(returned));
  }
  auto structure = nb::cast<ModelStructure>(returned);
  std::unordered_set<const Module*> own;
  for (const auto& [name, part] : nb::cast<Module&>(module).named_modules()) own.insert(part);
  for (const auto& [what, part] : parts_of(structure)) {
    if (own.contains(part)) continue;
    throw value_error("{}: {}: expected modules of the model, got another", method, what);
  }
  if (structure.units) {
    structure.units = [units = structure.units, &model = nb::cast<Module&>(module)](
                          const std::string& name, Module& part) {
      const nb::gil_scoped_acquire locked;
      // The object that Python is given of it owns it: the program may keep that.
      const nb::object owner = nb::cast(part_at(unowned(model), name));
      return units(name, part);
    };
  }
  for (Segment& segment : structure.segments) {
    auto* const function = segment.forward.target<SegmentFunction>();
    if (!function) continue;
    const nb::object method = *function->function;
    if (PyMethod_Check(method.ptr()) == 0 || PyMethod_GET_SELF(method.ptr()) != module.ptr()) {
      continue;
    }
    segment.forward = SegmentFunction{
        segment.name, keep(nb::borrow(PyMethod_GET_FUNCTION(method.ptr()))), module.ptr()};
  }
  return structure;
}

ModelStructure with_replica(ModelStructure structure, Module& module) {
  if (structure.replica) return structure;
  structure.replica = [&module] {
    const nb::gil_scoped_acquire locked;
    const nb::object self = nb::cast(&module, nb::rv_policy::reference);
    try {
      return nb::cast<std::shared_ptr<Module>>(nb::module_::import_("copy").attr("deepcopy")(self));
    } catch (const nb::python_error& error) {
      WEFT_FAIL(
          "a replica of {} is copy.deepcopy()'s where its structure() has none, and it cannot be "
          "copied: {}: {}",
          name_of_class(self), nb::type_name(error.type()).c_str(), nb::str(error.value()).c_str());
    }
  };
  return structure;
}

namespace {

/// In copy.deepcopy()'s memo, by which it knows an object that it meets again: modules and tensors
/// have several objects of Python's.
nb::object key_of(const void* address) { return nb::int_(reinterpret_cast<uintptr_t>(address)); }

/// A module of the same class, whose parameters have no memory yet.
nb::object blank_like(nb::handle self) {
  const auto& module = nb::cast<const Module&>(self);
  if (nb::hasattr(self, "_replica")) return self.attr("_replica")();
  const nb::handle type = self.type();
  // A module of C++ that Python has no class of.
  if (type.is(nb::type<Module>()) && typeid(module) != typeid(Module) &&
      !dynamic_cast<const nn::NamesItsClass*>(&module)) {
    throw type_error("deepcopy: expected the model that it belongs to, got a {}",
                     nn::class_name(module));
  }
  // Python's __init__ may do anything; that of the C++ class below it takes what _arguments says.
  for (nb::handle base : nb::borrow<nb::tuple>(type.attr("__mro__"))) {
    if (!nb::cast<bool>(base.attr("__dict__").attr("__contains__")("_arguments"))) continue;
    const nb::object made = type.attr("__new__")(type);
    const nn::MetaScope without_memory;
    base.attr("__init__")(made, *base.attr("_arguments")(self));
    return made;
  }
  throw InternalError("every class of modules has _arguments");
}

/// What C++ has made of a copy: values and flags of its tensors, and of those of its children.
void fill(Module& from, const nb::object& twin, nb::dict& memo) {
  auto& to = nb::cast<Module&>(twin);
  memo[key_of(&from)] = twin;
  if (to.is_training() != from.is_training()) to.train(from.is_training());
  const auto copy = [&](const NamedTensors& theirs, const NamedTensors& ours) {
    for (const auto& [name, original] : theirs) {
      const Tensor* const own = find_own(ours, name);
      if (!own) continue;
      Tensor tensor = *own;
      if (nn::has_memory(original)) tensor.set_data(ops::clone(detach(original)));
      if (!original.requires_grad()) tensor.set_requires_grad(false);
      memo[key_of(original.id())] = nb::cast(tensor);
    }
  };
  copy(ModuleAccess::parameters_of(from), ModuleAccess::parameters_of(to));
  copy(ModuleAccess::buffers_of(from), ModuleAccess::buffers_of(to));
  const auto& theirs = ModuleAccess::children_of(from);
  for (const auto& [name, child] : ModuleAccess::children_of(to)) {
    if (const auto* const original = find_own(theirs, name)) {
      fill(**original, nb::cast(child), memo);
    }
  }
}

/// What Python has added to a module: children, tensors and other attributes.
void add_what_python_added(nb::handle self, nb::handle twin, nb::dict& memo) {
  const nb::object copy = nb::module_::import_("copy").attr("deepcopy");
  auto &from = nb::cast<Module&>(self), &to = nb::cast<Module&>(twin);
  for (const auto& [name, child] : ModuleAccess::children_of(from)) {
    const auto copied = nb::cast<std::shared_ptr<Module>>(copy(nb::cast(child), memo));
    const auto& ours = ModuleAccess::children_of(to);
    const bool is_there = std::ranges::any_of(
        ours, [&](const auto& entry) { return entry.first == name && entry.second == copied; });
    if (!is_there) ModuleAccess::set_child_of(to, name, copied);
  }
  const auto add = [&](const NamedTensors& theirs, const NamedTensors& ours, auto registered) {
    for (const auto& [name, tensor] : theirs) {
      if (find_own(ours, name)) continue;
      Tensor copied = nb::cast<Tensor>(copy(nb::cast(tensor), memo));
      registered(to, name, copied);
      if (!tensor.requires_grad()) copied.set_requires_grad(false);
    }
  };
  add(ModuleAccess::parameters_of(from), ModuleAccess::parameters_of(to),
      &ModuleAccess::parameter_of);
  add(ModuleAccess::buffers_of(from), ModuleAccess::buffers_of(to), &ModuleAccess::buffer_of);
  if (!nb::hasattr(self, "__dict__")) return;
  twin.attr("__dict__").attr("update")(copy(self.attr("__dict__"), memo));
}

/// Throws Error for a model that was set up, of which this rank's tensors are parts.
void check_whole(Module& module) {
  train::Fabric* const fabric = train::Fabric::of(module);
  if (!fabric || fabric->strategy().keeps_whole_state()) return;
  // Under zero1 and zero2 the model's own tensors are whole.
  const bool is_whole =
      std::ranges::all_of(module.unrouted_state(),
                          [](const auto& entry) { return nn::has_memory(entry.second); }) &&
      std::ranges::none_of(module.named_modules(),
                           [](const auto& part) { return part.second->has_stand_in(); });
  WEFT_CHECK(is_whole,
             "deepcopy: expected a model whose tensors are whole, got a {} that was set up with "
             "strategy {}; copy it before setup(), or load its state_dict() into a new one",
             nn::class_name(module), fabric->options().strategy.name);
}

nb::object deep_copy(nb::handle_t<Module> self, nb::dict memo) {
  auto& module = nb::cast<Module&>(self);
  if (const nb::object known = memo.get(key_of(&module), nb::none()); !known.is_none()) {
    return known;
  }
  // Blank layers draw random numbers, of which a copy has no use.
  const Generator position = generator();
  // All that C++ makes comes first: its tensors cannot become others' later.
  std::vector<std::pair<nb::object, nb::object>> copies;
  // Names of deeply nested modules would take more than they do.
  std::vector pending = {nb::cast<std::shared_ptr<Module>>(self)};
  while (!pending.empty()) {
    const std::shared_ptr<Module> part = std::move(pending.back());
    pending.pop_back();
    for (const auto& [name, child] : std::views::reverse(ModuleAccess::children_of(*part))) {
      pending.push_back(child);
    }
    if (memo.contains(key_of(part.get()))) continue;
    check_whole(*part);
    const nb::object original = nb::cast(part);
    const nb::object twin = blank_like(original);
    fill(*part, twin, memo);
    copies.emplace_back(original, twin);
  }
  generator() = position;
  for (const auto& [original, twin] : copies) add_what_python_added(original, twin, memo);
  return copies[0].second;
}

/// By which copy.deepcopy() puts a model's modules and tensors in the place of another's.
nb::dict memo_of(Module& from, const std::shared_ptr<Module>& to) {
  nb::dict memo;
  const auto add = [](const auto& theirs, const auto& ours, const auto& pair) {
    for (const auto& [name, original] : theirs) {
      if (const auto* const twin = find_own(ours, name)) pair(original, *twin);
    }
  };
  add(from.named_modules(), owned_modules(to), [&](const Module* theirs, const auto& ours) {
    memo[key_of(theirs)] = nb::cast(ours);  // copies keep it
  });
  const auto pair = [&](const Tensor& theirs, const Tensor& ours) {
    memo[key_of(theirs.id())] = nb::cast(ours);
  };
  add(from.named_parameters(), to->named_parameters(), pair);
  add(from.named_buffers(), to->named_buffers(), pair);
  return memo;
}

/// Whether that is so of each leaf. Of what holds itself it is not.
bool is_each_leaf(nb::handle value, const std::function<bool(nb::handle)>& question) {
  bool is_each = true;
  try {
    for_each_leaf(value, [&](nb::handle leaf) { is_each = is_each && question(leaf); });
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_RecursionError)) throw;
    return false;
  }
  return is_each;
}

bool is_plain(nb::handle leaf) {
  PyObject* const p = leaf.ptr();
  return leaf.is_none() || PyLong_Check(p) || PyFloat_Check(p) || PyUnicode_Check(p) ||
         PyBytes_Check(p);
}

/// Of which each replica has its own: gradients add up in it.
bool is_trained(nb::handle leaf) {
  return nb::isinstance<Module>(leaf) ||
         (nb::isinstance<Tensor>(leaf) && nb::cast<const Tensor&>(leaf).requires_grad());
}

nb::object copy_for(nb::handle value, bool is_plain, Module& from,
                    const std::shared_ptr<Module>& to) {
  const nb::object copy = nb::module_::import_("copy").attr("deepcopy");
  if (is_plain) return copy(value);
  try {
    return copy(value, memo_of(from, to));
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;
    WEFT_CHECK(is_each_leaf(value, [](nb::handle leaf) { return !is_trained(leaf); }),
               "dp: expected what copy.deepcopy() can copy for each replica, as it holds modules "
               "or tensors that require a gradient, got a {}: {}: {}",
               name_of_class(value), nb::type_name(error.type()).c_str(),
               nb::str(error.value()).c_str());
    return nb::borrow(value);  // a lock, the model's Fabric
  }
}

/// While this thread passes an attribute on.
thread_local bool is_following = false;

}  // namespace

struct Replicas {
  Module& model;  // it is there where Fabric::of() knows it
  std::vector<std::weak_ptr<Module>> all;
};

namespace {

/// Tells the parts of the model and of its replicas where they are: of several names the first.
void label(const std::shared_ptr<Replicas>& replicas) {
  const auto tell = [&](Module& whole, size_t replica) {
    const auto parts = whole.named_modules();
    for (const auto& [path, part] : std::views::reverse(parts)) {
      auto* const known = dynamic_cast<Replicated*>(part);
      if (!known) continue;
      std::erase_if(known->places, [&](const Replicated::Place& place) {
        const Module& model = place.replicas->model;
        return &model == &replicas->model || !train::Fabric::of(model);
      });
      known->places.push_back({replicas, replica, path});
    }
  };
  tell(replicas->model, 0);
  for (size_t i = 0; i < replicas->all.size(); ++i) {
    if (const std::shared_ptr<Module> replica = replicas->all[i].lock()) tell(*replica, i + 1);
  }
}

/// Where the module is now, of the places from which attributes follow.
std::vector<Replicated::Place> places_of(Module& module) {
  std::vector<Replicated::Place> places;
  auto* const known = dynamic_cast<Replicated*>(&module);
  if (!known) return places;
  for (Replicated::Place& place : known->places) {
    Module& model = place.replicas->model;
    if (place.replica > 1 || !train::Fabric::of(model)) continue;
    const std::shared_ptr<Module> first = place.replicas->all.front().lock();
    const std::shared_ptr<Module> whole = place.replica == 0 ? unowned(model) : first;
    if (!whole) continue;
    if (part_at(whole, place.path).get() != &module) {  // another has taken its place
      const auto parts = whole->named_modules();
      const auto found =
          std::ranges::find(parts, &module, [](const auto& part) { return part.second; });
      if (found == parts.end()) continue;
      place.path = found->first;
    }
    places.push_back(place);
  }
  return places;
}

}  // namespace

nn::ModelStructure with_followers(nn::ModelStructure structure, Module& module) {
  const auto replicas = std::make_shared<Replicas>(Replicas{module, {}});
  structure.replica = [make = structure.replica, replicas] {
    std::shared_ptr<Module> made = make();
    replicas->all.push_back(made);
    label(replicas);
    return made;
  };
  return structure;
}

Followers::Followers(Module& module, nb::handle value) {
  if (is_following) return;
  const std::vector<Replicated::Place> places = places_of(module);
  if (places.empty()) return;
  const bool is_plain = is_each_leaf(value, &python::is_plain);
  for (const auto& [replicas, replica, path] : places) {
    Module& model = replicas->model;
    const auto add = [&](const std::shared_ptr<Module>& whole) {
      const std::shared_ptr<Module> part = part_at(whole, path);
      if (part) all_.emplace_back(nb::cast(part), copy_for(value, is_plain, model, whole));
    };
    if (replica == 1) {
      if (is_plain) add(unowned(model));
      continue;
    }
    for (const std::weak_ptr<Module>& one : replicas->all) {
      if (const std::shared_ptr<Module> whole = one.lock()) add(whole);
    }
    if (!is_plain) changed_.push_back(replicas);
  }
}

void Followers::set(const std::function<void(nb::handle, nb::handle)>& set) const {
  const ScopedValue following(is_following, true);
  for (const auto& [module, value] : all_) set(module, value);
  for (const std::shared_ptr<Replicas>& replicas : changed_) label(replicas);
}

void bind_structures(nb::module_& m, nb::class_<Module, Derivable<Module>>& module) {
  bind_structure(m);
  module
      .def(
          "structure", [](Module& self) { return self.Module::structure(); },
          nb::keep_alive<0, 1>(),
          "What the model says of itself to strategies, a ModelStructure. Subclasses define it; by "
          "default it says nothing.")
      .def("_arguments", [](const Module&) { return nb::tuple(); })
      .def(
          "__deepcopy__", &deep_copy, "memo"_a,
          "Another module of the class, with tensors of its own: values, requires_grad, modes, and "
          "deep copies of other attributes; no gradients, hooks, or ties to a Fabric. What the "
          "original shares within itself the copy does, too. Throws TypeError for an attribute "
          "that cannot be copied.");
}

}  // namespace weft::python
