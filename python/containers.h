// Tuples, lists and dicts of Python's, nested, and the leaves in them. Whoever calls holds the
// interpreter's lock.
#pragma once

#include <functional>

#include "python/casters.h"

namespace weft::python {

/// Calls f with each leaf, in order.
void for_each_leaf(nb::handle part, const std::function<void(nb::handle)>& f);

/// The containers anew, each of its own class, with what f makes of each leaf, in the same order.
nb::object with_each_leaf(nb::handle part, const std::function<nb::object(nb::handle)>& f);

}  // namespace weft::python
