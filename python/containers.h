// Tuples, lists and dicts of Python's, nested, and the leaves in them, of any class. Whoever calls
// holds the interpreter's lock.
#pragma once

#include <functional>
#include <string>

#include "python/casters.h"

namespace weft::python {

/// The name of an object's class, for errors: "list", "numpy.ndarray".
inline std::string type_of(nb::handle object) { return nb::type_name(object.type()).c_str(); }

/// Calls f with each leaf, in order.
void for_each_leaf(nb::handle part, const std::function<void(nb::handle)>& f);

/// The containers anew, each of its own class, with what f makes of each leaf, in the same order.
nb::object with_each_leaf(nb::handle part, const std::function<nb::object(nb::handle)>& f);

}  // namespace weft::python
