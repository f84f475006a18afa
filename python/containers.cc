#include "python/containers.h"

namespace weft::python {
namespace {

using Leaf = std::function<nb::object(nb::handle)>;

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

nb::object with_each_value(const nb::dict& part, const Leaf& f) {
  nb::object copy;
  for (const auto& [key, value] : part) {
    const nb::object made = with_each_leaf(value, f);
    if (made.is(value)) continue;
    if (!copy.is_valid()) copy = copy_of(part);
    copy[key] = made;
  }
  return copy.is_valid() ? copy : nb::object(part);
}

/// Of a tuple or a list.
nb::object with_each_item(nb::handle part, const Leaf& f) {
  nb::list items;
  bool is_changed = false;
  for (nb::handle item : part) {
    const nb::object made = with_each_leaf(item, f);
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
nb::object with_each_field(nb::handle part, const Leaf& f) {
  nb::object copy;
  for (nb::handle field : nb::module_::import_("dataclasses").attr("fields")(part)) {
    const nb::object name = field.attr("name");
    if (!nb::hasattr(part, name)) continue;  // no __init__ has set it yet
    const nb::object value = nb::getattr(part, name);
    const nb::object made = with_each_leaf(value, f);
    if (made.is(value)) continue;
    if (!copy.is_valid()) copy = nb::module_::import_("copy").attr("copy")(part);
    // Of a frozen one, too, whose own __setattr__ refuses.
    if (PyObject_GenericSetAttr(copy.ptr(), name.ptr(), made.ptr()) != 0) throw nb::python_error();
  }
  return copy.is_valid() ? copy : nb::borrow(part);
}

}  // namespace

void for_each_leaf(nb::handle part, const std::function<void(nb::handle)>& f) {
  with_each_leaf(part, [&](nb::handle leaf) {
    f(leaf);
    return nb::borrow(leaf);
  });
}

nb::object with_each_leaf(nb::handle part, const std::function<nb::object(nb::handle)>& f) {
  if (nb::inst_check(part)) return f(part);  // Weft's own, be it a dataclass as well
  const Depth depth(" in nested containers");
  if (nb::isinstance<nb::dict>(part)) return with_each_value(nb::borrow<nb::dict>(part), f);
  if (nb::isinstance<nb::tuple>(part) || nb::isinstance<nb::list>(part)) {
    return with_each_item(part, f);
  }
  return nb::hasattr(part.type(), "__dataclass_fields__") ? with_each_field(part, f) : f(part);
}

}  // namespace weft::python
