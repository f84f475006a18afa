#include "python/json.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "python/containers.h"

namespace weft::python {
namespace {

constexpr const char* kFloat = "weft.float";
constexpr const char* kTensor = "weft.tensor";

constexpr double kInfinity = std::numeric_limits<double>::infinity();

nb::dict word(const char* kind, const std::string& text) {
  nb::dict object;
  object[kind] = text;
  return object;
}

/// The text of an object of this one key; null of any other.
const std::string* word_of(const nlohmann::json& json, const char* kind) {
  if (!json.is_object() || json.size() != 1 || !json.contains(kind)) return nullptr;
  return json.at(kind).get_ptr<const std::string*>();
}

/// JSON's parser would take a longer integer for a float.
void check_integer(nb::handle integer) {
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(integer.ptr(), &overflow);
  if (value == -1 && PyErr_Occurred()) throw nb::python_error();
  if (overflow == 0) return;
  if (overflow > 0) {
    PyLong_AsUnsignedLongLong(integer.ptr());
    if (!PyErr_Occurred()) return;
    PyErr_Clear();
  }
  throw type_error("expected an integer of 64 bits, got {}", nb::repr(integer).c_str());
}

/// json.dumps would make a text of a number.
void check_key(nb::handle key) {
  if (PyUnicode_Check(key.ptr())) return;
  throw type_error("expected texts as a dict's keys, got {}, a {}", nb::repr(key).c_str(),
                   type_of(key));
}

/// The object for json.dumps, with the words above.
nb::object in_words(nb::handle object, NamedTensors* tensors) {
  const Depth depth(" in what JSON is to hold");
  PyObject* const p = object.ptr();
  if (PyFloat_Check(p)) {
    const double value = PyFloat_AS_DOUBLE(p);
    if (std::isfinite(value)) return nb::borrow(object);
    return word(kFloat, std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
  }
  if (PyLong_Check(p)) {
    check_integer(object);
    return nb::borrow(object);
  }
  if (tensors && nb::isinstance<Tensor>(object)) {
    const std::string name = std::to_string(tensors->size());
    tensors->emplace_back(name, nb::cast<Tensor>(object));
    return word(kTensor, name);
  }
  if (PyDict_Check(p)) {
    nb::dict dict;
    for (const auto& [key, value] : nb::borrow<nb::dict>(object)) {
      check_key(key);
      dict[key] = in_words(value, tensors);
    }
    return dict;
  }
  if (!PyList_Check(p) && !PyTuple_Check(p)) return nb::borrow(object);
  nb::list list;
  for (nb::handle item : object) list.append(in_words(item, tensors));
  return list;
}

}  // namespace

nb::object object_of(const nlohmann::json& json, const NamedTensors& tensors) {
  using Type = nlohmann::json::value_t;
  switch (json.type()) {
    case Type::boolean:
      return nb::bool_(json.get<bool>());
    case Type::number_integer:
      return nb::int_(json.get<int64_t>());
    case Type::number_unsigned:
      return nb::int_(json.get<uint64_t>());
    case Type::number_float:
      return nb::float_(json.get<double>());
    case Type::string: {
      const auto& text = json.get_ref<const std::string&>();
      return nb::str(text.data(), text.size());
    }
    case Type::array: {
      nb::list list;
      for (const nlohmann::json& item : json) list.append(object_of(item, tensors));
      return list;
    }
    case Type::object: {
      if (const std::string* const name = word_of(json, kTensor)) {
        const auto found =
            std::ranges::find(tensors, *name, [](const auto& entry) { return entry.first; });
        WEFT_CHECK(found != tensors.end(), "expected a tensor \"{}\" beside the state", *name);
        return nb::cast(found->second);
      }
      if (const std::string* const text = word_of(json, kFloat)) {
        if (*text == "nan") return nb::float_(std::numeric_limits<double>::quiet_NaN());
        if (*text == "inf") return nb::float_(kInfinity);
        if (*text == "-inf") return nb::float_(-kInfinity);
      }
      nb::dict dict;
      for (const auto& [key, value] : json.items()) {
        dict[nb::str(key.data(), key.size())] = object_of(value, tensors);
      }
      return dict;
    }
    default:
      return nb::none();
  }
}

nlohmann::json json_of(nb::handle object, NamedTensors* tensors) {
  const nb::object words = in_words(object, tensors);
  const auto text = nb::cast<std::string>(nb::module_::import_("json").attr("dumps")(words));
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {  // half of a surrogate pair
    throw type_error("JSON cannot hold {}: {}", text, error.what());
  }
}

}  // namespace weft::python
