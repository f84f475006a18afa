// Classes of modules that Python may derive from, and what such a class says of itself to C++.
#pragma once

#include <nanobind/trampoline.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "nn/class_name.h"
#include "nn/structure.h"
#include "python/casters.h"

namespace weft::python {

/// What modules keep for their subclasses.
struct ModuleAccess : nn::Module {
  static void set_child_of(Module& m, std::string_view name, std::shared_ptr<Module> child) {
    (m.*&ModuleAccess::set_child)(name, std::move(child));
  }
  static void parameter_of(Module& m, std::string_view name, const Tensor& x) {
    (m.*&ModuleAccess::parameter)(name, x);
  }
  static void buffer_of(Module& m, std::string_view name, const Tensor& x) {
    (m.*&ModuleAccess::buffer)(name, x);
  }
  static const auto& children_of(const Module& m) { return (m.*&ModuleAccess::children)(); }
  static const auto& parameters_of(const Module& m) { return (m.*&ModuleAccess::own_parameters)(); }
  static const auto& buffers_of(const Module& m) { return (m.*&ModuleAccess::own_buffers)(); }
};

/// A module's and its descendants' names, and those modules with whoever owns them: what Python is
/// given may outlive the root.
using OwnedModules = std::vector<std::pair<std::string, std::shared_ptr<nn::Module>>>;
/// named_modules().
OwnedModules owned_modules(const std::shared_ptr<nn::Module>& root);

/// The tensor of that name, or the child; null: there is none.
template <class T>
const T* find_own(const std::vector<std::pair<std::string, T>>& own, std::string_view name) {
  const auto found = std::ranges::find(own, name, &std::pair<std::string, T>::first);
  return found == own.end() ? nullptr : &found->second;
}
/// Its parameter or buffer of that name, not one of a child; null: there is none.
inline const Tensor* find_own_tensor(const nn::Module& module, std::string_view name) {
  const Tensor* const own = find_own(ModuleAccess::parameters_of(module), name);
  return own ? own : find_own(ModuleAccess::buffers_of(module), name);
}

/// The method that Python has in the place of a virtual function, if any.
struct Overridden : nb::detail::ticket {
  Overridden(const nb::detail::trampoline& trampoline, const char* name)
      : ticket(trampoline, name, nb::detail::str_hash(name), false), trampoline(trampoline) {}
  explicit operator bool() const { return key.is_valid(); }
  template <class... Arguments>
  nb::object operator()(const Arguments&... arguments) const {
    return trampoline.base().attr(key)(passed(arguments)...);
  }
  const nb::detail::trampoline& trampoline;

 private:
  /// Objects that have an identity as themselves, all else by value.
  template <class T>
  static decltype(auto) passed(const T& x) {
    if constexpr (std::is_polymorphic_v<T> || !std::is_copy_constructible_v<T>) {
      return const_cast<T*>(&x);
    } else {
      return (x);
    }
  }
};

/// "net.Block". The caller need not hold the interpreter's lock.
std::string name_of_class(nb::handle object);

/// What forward() of `module`, an object of Python's, has returned to C++. Throws a TypeError for
/// anything but a tensor.
Tensor tensor_of_forward(nb::handle module, const nb::object& returned);

/// What structure() of `module`, an object of Python's, has returned. Throws a TypeError for
/// anything but a ModelStructure, and a ValueError naming a part that is no module of this one. The
/// result, which `module` must outlive, holds no reference to it, but for functions of the
/// program's that do.
nn::ModelStructure read_structure(nb::handle module, nb::handle returned);

/// The structure with replicas; where it does not say how they are made, by copy.deepcopy(). They
/// throw Error naming the class that cannot be copied.
nn::ModelStructure with_replica(nn::ModelStructure structure, nn::Module& module);

/// A model of which replicas were made, and these.
struct Replicas;
/// A module of a class that is written in Python: a part of such models, or of replicas.
struct Replicated {
  struct Place {
    std::shared_ptr<Replicas> replicas;
    size_t replica = 0;  // from 1; 0: in the model
    std::string path;    // its name there
  };
  std::vector<Place> places;  // one of each model: a model may itself be a part of another
};
/// The structure with replicas that attributes follow to.
nn::ModelStructure with_followers(nn::ModelStructure structure, nn::Module& module);

/// Those that an attribute of a module follows to, made before it is set: by then a module that it
/// replaces is the model's still. Of a part of a model: the replicas get what copy.deepcopy() makes
/// of it, which knows their modules and tensors by those of the model, or itself where it cannot be
/// copied; that is an Error where it holds modules or tensors that require a gradient. Of a part of
/// the first replica: the model gets numbers, texts and None, also in tuples, lists, dicts and
/// dataclasses, and nothing else: what the others do is of another part of the batch, and a
/// tensor's history of the replica alone.
class Followers {
 public:
  Followers(nn::Module& module, nb::handle value);
  /// Calls `set` with each module that is to have it, too, and what that is to have. They do not
  /// pass it on.
  void set(const std::function<void(nb::handle module, nb::handle value)>& set) const;

 private:
  std::vector<std::pair<nb::object, nb::object>> all_;
  std::vector<std::shared_ptr<Replicas>> changed_;  // whose modules may be others by then
};

/// A C++ class of modules that Python may derive from: what Python defines is then C++'s, too.
template <class Base>
struct Derivable : Base, nn::NamesItsClass, Replicated {
  NB_TRAMPOLINE(Base);
  Tensor forward(const Tensor& x) override {
    const Overridden own(nb_trampoline, "forward");
    return own ? tensor_of_forward(nb_trampoline.base(), own(x)) : Base::forward(x);
  }
  nn::ModelStructure structure() override {
    const Overridden own(nb_trampoline, "structure");
    nn::ModelStructure structure =
        own ? read_structure(nb_trampoline.base(), own()) : Base::structure();
    return with_followers(with_replica(std::move(structure), *this), *this);
  }
  std::string class_name() const override {
    const nb::gil_scoped_acquire locked;
    const nb::handle self = nb_trampoline.base();
    const bool is_cpps = self.type().is(nb::type<Base>());
    return is_cpps ? nn::class_name(typeid(Base)) : name_of_class(self);
  }
};

}  // namespace weft::python
