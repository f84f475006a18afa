#include "python/train/states.h"

#include "data/loader.h"
#include "io/sharded_safetensors.h"
#include "optim/schedule.h"
#include "python/containers.h"
#include "python/json.h"
#include "python/named_tensors.h"

namespace weft::python {
namespace {

constexpr std::string_view kTensors = "#tensors";

std::string name_of(const char* function, nb::handle key) {
  if (nb::isinstance<nb::str>(key)) return nb::cast<std::string>(key);
  throw type_error("fabric.{}: expected texts as the state's keys, got {}, a {}", function,
                   nb::repr(key).c_str(), type_of(key));
}

bool has_state(nb::handle object) {
  return nb::hasattr(object, "state_dict") && nb::hasattr(object, "load_state_dict");
}

bool is_of_tensors(nb::handle object) {
  if (!nb::isinstance<nb::dict>(object) || nb::len(object) == 0) return false;
  for (const auto& [name, value] : nb::borrow<nb::dict>(object)) {
    if (!nb::isinstance<nb::str>(name) || !nb::isinstance<Tensor>(value)) return false;
  }
  return true;
}

/// Python's own or NumPy's: other objects that can be made a float are more than that.
bool is_number(nb::handle object) {
  return PyFloat_Check(object.ptr()) || PyLong_Check(object.ptr()) || nb::hasattr(object, "dtype");
}

[[noreturn]] void refuse(const std::string& name, nb::handle value, const std::string& why) {
  throw type_error(
      "fabric.save: the state \"{}\", a {}: expected a model, optimizer, scheduler, scaler, "
      "loader, tensors, what JSON holds, or an object with state_dict() and load_state_dict(): {}",
      name, type_of(value), why);
}

/// A saved model's tensors, by their own names.
NamedTensors tensors_in(const io::Path& path, const std::string& model) {
  NamedTensors tensors;
  const std::string prefix = model + ".";
  const auto add = [&](const std::string& name, const auto& read) {
    if (name.starts_with(prefix)) tensors.emplace_back(name.substr(prefix.size()), read());
  };
  if (io::is_sharded_state(path)) {
    io::ShardedReader reader(path);
    for (const auto& entry : reader.index().tensors) {
      add(entry.first, [&] { return reader.read(entry.first); });
    }
  } else {
    for (const auto& entry : io::read_safetensors(path).tensors) {
      add(entry.first, [&] { return entry.second; });
    }
  }
  return tensors;
}

std::set<std::string> names_of(const NamedTensors& tensors) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) names.insert(name);
  return names;
}

void check_filter(const nb::dict& filter, const nb::dict& state) {
  for (const auto& [key, stays] : filter) {
    if (!state.contains(key)) {
      throw value_error("fabric.save: filter: expected keys of the state, got {}",
                        nb::repr(key).c_str());
    }
    if (PyCallable_Check(stays.ptr()) == 0) {
      throw type_error(
          "fabric.save: filter: expected a function of a name and a value for {}, got a {}",
          nb::repr(key).c_str(), type_of(stays));
    }
  }
}

}  // namespace

States::States(const nb::dict& state, const nb::dict& filter) : dict_(state) {
  check_filter(filter, state);
  for (const auto& [key, value] : state) {
    const std::string name = name_of("save", key);
    if (filter.contains(key)) {
      add_filtered(name, value, nb::object(filter[key]));
    } else if (!add_object(name, value)) {
      add_value(name, value);
    }
  }
}

States::States(const nb::dict& state, const train::Fabric::StateKinds& kinds, const io::Path& path,
               bool strict)
    : dict_(state), strict_(strict) {
  for (const auto& [name, kind] : kinds) {
    const std::string beside = name + std::string(kTensors);
    if (kind == "json" && kinds.contains(beside)) beside_.insert(beside);
  }
  for (const auto& [key, value] : state) {
    const std::string name = name_of("load", key);
    const auto found = kinds.find(name);
    if (found == kinds.end() && !strict) continue;
    const std::string kind = found == kinds.end() ? "json" : found->second;
    if (nb::isinstance<nn::Module>(value) && ask_some(name, value, kind, path)) continue;
    if (!add_object(name, value)) ask(name, value, kind);
  }
}

template <class T>
const States::Value* States::keep(const std::string& name, T value) {
  Value& kept = values_.emplace_back(std::in_place_type<T>, std::move(value));
  states_.emplace_back(name, std::get_if<T>(&kept));
  return &kept;
}

bool States::add_object(const std::string& name, nb::handle value) {
  const auto add = [&]<class Object>(std::type_identity<Object>) {
    if (!nb::isinstance<Object>(value)) return false;
    states_.emplace_back(name, nb::cast<Object*>(value));
    return true;
  };
  if (nb::isinstance<Tensor>(value)) {
    keep(name, nb::cast<Tensor>(value));  // shares its memory
    return true;
  }
  return add(std::type_identity<nn::Module>()) || add(std::type_identity<optim::Optimizer>()) ||
         add(std::type_identity<optim::Scheduler>()) ||
         add(std::type_identity<optim::GradScaler>()) || add(std::type_identity<data::Loader>());
}

void States::add_value(const std::string& name, nb::handle value) {
  const nb::object state = has_state(value) ? value.attr("state_dict")() : nb::borrow(value);
  if (nb::isinstance<Tensor>(state)) return void(keep(name, nb::cast<Tensor>(state)));
  if (is_of_tensors(state)) return void(keep(name, tensors_of(nb::borrow<nb::dict>(state))));
  std::string text;  // one that is no Unicode JSON will refuse
  if (nb::isinstance<nb::str>(state) && nb::try_cast(state, text)) return void(keep(name, text));
  Operand number;
  if (is_number(state) && read_number(state, number)) {
    if (number.kind == Operand::Kind::kBool) return void(keep(name, number.integer != 0));
    if (number.kind == Operand::Kind::kInt) return void(keep(name, number.integer));
    return void(keep(name, number.real));
  }
  NamedTensors tensors;
  try {
    keep(name, json_of(state, &tensors));
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    refuse(name, value, nb::str(error.value()).c_str());
  } catch (const nb::builtin_exception& error) {
    refuse(name, value, error.what());
  }
  if (!tensors.empty()) keep(name + std::string(kTensors), std::move(tensors));
}

void States::add_filtered(const std::string& name, nb::handle value, nb::handle stays) {
  const bool is_model = nb::isinstance<nn::Module>(value);
  nb::object items = nb::none();
  if (is_model || !nb::inst_check(value)) {
    items = has_state(value) ? value.attr("state_dict")() : nb::borrow(value);
  }
  if (!nb::isinstance<nb::dict>(items)) {
    throw type_error(
        "fabric.save: filter: the state \"{}\", a {}: expected a model, a dict, or an object whose "
        "state_dict() is one",
        name, type_of(value));
  }
  nb::dict kept;
  for (const auto& [key, item] : nb::borrow<nb::dict>(items)) {
    if (nb::bool_(stays(key, item))) kept[key] = item;
  }
  if (is_model) return void(keep(name, tensors_of(kept)));
  add_value(name, kept);
}

/// A model of which the file may have some tensors alone; false: it is all there, or is to be.
bool States::ask_some(const std::string& name, nb::handle model, const std::string& kind,
                      const io::Path& path) {
  const Value* value = nullptr;
  if (kind == "tensors") {  // of a filter's
    value = keep(name, NamedTensors());
  } else {
    if (strict_ || kind != "model") return false;
    NamedTensors saved = tensors_in(path, name);
    const NamedTensors own = nb::cast<nn::Module&>(model).unrouted_state();
    if (names_of(saved) == names_of(own)) return false;
    value = &values_.emplace_back(std::move(saved));
    beside_.insert(name);
  }
  asked_.push_back({.name = name, .owner = nb::borrow(model), .value = value});
  return true;
}

void States::ask(const std::string& name, nb::handle value, const std::string& kind) {
  Asked asked = {.name = name, .owner = has_state(value) ? nb::borrow(value) : nb::none()};
  if (kind == "integer") {
    asked.value = keep(name, int64_t{});
  } else if (kind == "number") {
    asked.value = keep(name, double{});
  } else if (kind == "truth") {
    asked.value = keep(name, bool{});
  } else if (kind == "text") {
    asked.value = keep(name, std::string());
  } else if (kind == "tensors") {
    asked.value = keep(name, NamedTensors());
  } else {
    asked.value = keep(name, nlohmann::json());
    const std::string beside = name + std::string(kTensors);
    if (beside_.contains(beside)) asked.tensors = keep(beside, NamedTensors());
  }
  asked_.push_back(std::move(asked));
}

std::vector<std::string> States::finish(std::vector<std::string> left) {
  for (const Asked& asked : asked_) {
    const NamedTensors beside =
        asked.tensors ? std::get<NamedTensors>(*asked.tensors) : NamedTensors();
    const nb::object value = std::visit(
        [&]<class T>(const T& v) -> nb::object {
          if constexpr (std::is_same_v<T, nlohmann::json>) {
            return object_of(v, beside);
          } else if constexpr (std::is_same_v<T, NamedTensors>) {
            return dict_of(v);
          } else {
            return nb::cast(v);
          }
        },
        *asked.value);
    if (asked.owner.is_none()) {
      dict_[asked.name.c_str()] = value;
    } else if (nb::isinstance<nn::Module>(asked.owner)) {
      asked.owner.attr("load_state_dict")(value, strict_);
    } else {
      asked.owner.attr("load_state_dict")(value);
    }
  }
  std::erase_if(left, [this](const std::string& name) { return beside_.contains(name); });
  return left;
}

}  // namespace weft::python
