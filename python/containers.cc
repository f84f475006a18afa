#include "python/containers.h"

#include <unordered_map>

namespace weft::python {
namespace {

using Leaf = std::function<nb::object(nb::handle)>;

struct Walk {
  struct Container {
    nb::object itself;  // kept, or another might come to lie in its place
    nb::object made;    // none while it is being walked
  };
  const Leaf& f;
  bool repeats;  // walks a container wherever it is met
  std::function<bool(nb::handle)> is_whole = nullptr;
  std::unordered_map<PyObject*, Container> met = {};

  nb::object operator()(nb::handle part);
};

/// An object of the part's class, of which `base` is Python's own, with the part's attributes. No
/// __init__ of the class is called: it may want anything.
template <class... Arguments>
nb::object new_like(nb::handle part, PyTypeObject& base, const Arguments&... arguments) {
  const nb::handle type(reinterpret_cast<PyObject*>(&base));
  const nb::object made = type.attr("__new__")(part.type(), arguments...);
  if (!nb::hasattr(part, "__dict__")) return made;
  const nb::object attributes = part.attr("__dict__");
  if (attributes.is(part)) {  // a dict whose items are its attributes
    nb::setattr(made, "__dict__", made);
  } else {
    made.attr("__dict__").attr("update")(attributes);
  }
  return made;
}

nb::object copy_of(const nb::dict& part) {
  nb::object copy = part.attr("copy")();  // a defaultdict keeps its function
  if (copy.type().is(part.type())) return copy;
  copy = new_like(part, PyDict_Type);
  for (const auto& [key, value] : part) copy[key] = value;
  return copy;
}

nb::object with_each_value(const nb::dict& part, Walk& walk) {
  nb::object copy;
  for (const auto& [key, value] : part) {
    if (walk.is_whole) walk.f(key);
    const nb::object made = walk(value);
    if (made.is(value)) continue;
    if (!copy.is_valid()) copy = copy_of(part);
    copy[key] = made;
  }
  return copy.is_valid() ? copy : nb::object(part);
}

/// Of a tuple or a list.
nb::object with_each_item(nb::handle part, Walk& walk) {
  nb::list items;
  bool is_changed = false;
  for (nb::handle item : part) {
    const nb::object made = walk(item);
    is_changed = is_changed || !made.is(item);
    items.append(made);
  }
  if (!is_changed) return nb::borrow(part);
  if (nb::isinstance<nb::tuple>(part)) return new_like(part, PyTuple_Type, items);
  const nb::object copy = new_like(part, PyList_Type);
  if (PyList_SetSlice(copy.ptr(), 0, 0, items.ptr()) != 0) throw nb::python_error();
  return copy;
}

/// Of a dataclass.
nb::object with_each_field(nb::handle part, Walk& walk) {
  nb::object copy;
  for (nb::handle field : nb::module_::import_("dataclasses").attr("fields")(part)) {
    const nb::object name = field.attr("name");
    if (!nb::hasattr(part, name)) continue;  // no __init__ has set it yet
    const nb::object value = nb::getattr(part, name);
    const nb::object made = walk(value);
    if (made.is(value)) continue;
    if (!copy.is_valid()) copy = nb::module_::import_("copy").attr("copy")(part);
    // Of a frozen one, too, whose own __setattr__ refuses.
    if (PyObject_GenericSetAttr(copy.ptr(), name.ptr(), made.ptr()) != 0) throw nb::python_error();
  }
  return copy.is_valid() ? copy : nb::borrow(part);
}

nb::object Walk::operator()(nb::handle part) {
  if (nb::inst_check(part)) return f(part);  // Weft's own, be it a dataclass as well
  const bool is_dict = nb::isinstance<nb::dict>(part);
  const bool is_list = nb::isinstance<nb::tuple>(part) || nb::isinstance<nb::list>(part);
  if (!is_dict && !is_list && !nb::hasattr(part.type(), "__dataclass_fields__")) return f(part);
  if (is_list && is_whole && is_whole(part)) return f(part);
  const Depth depth(" in nested containers");
  const auto [entry, is_new] = met.try_emplace(part.ptr(), nb::borrow(part));
  Container& container = entry->second;
  if (!is_new && !container.made.is_valid()) {
    PyErr_SetString(PyExc_RecursionError, "a container holds itself in nested containers");
    throw nb::python_error();
  }
  if (is_new || repeats) {
    container.made.reset();
    container.made = is_dict   ? with_each_value(nb::borrow<nb::dict>(part), *this)
                     : is_list ? with_each_item(part, *this)
                               : with_each_field(part, *this);
  }
  return container.made;
}

}  // namespace

void for_each_leaf(nb::handle part, const std::function<void(nb::handle)>& f) {
  const Leaf each = [&](nb::handle leaf) {
    f(leaf);
    return nb::borrow(leaf);
  };
  Walk{each, false}(part);
}

nb::object with_each_leaf(nb::handle part, const std::function<nb::object(nb::handle)>& f,
                          const std::function<bool(nb::handle)>& is_whole) {
  return Walk{f, true, is_whole}(part);
}

}  // namespace weft::python
