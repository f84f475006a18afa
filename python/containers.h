// Tuples, lists, dicts and dataclasses of Python's, nested, and the leaves in them, of any other
// class. Whoever calls holds the interpreter's lock.
#pragma once

#include <functional>

#include "python/casters.h"

namespace weft::python {

/// A level of a function that follows Python's objects into each other: with it one that holds
/// itself ends as Python's RecursionError, " in what was walked".
struct Depth {
  explicit Depth(const char* where) {
    if (Py_EnterRecursiveCall(where)) throw nb::python_error();
  }
  ~Depth() { Py_LeaveRecursiveCall(); }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;
};

/// Calls f with each leaf, in order, of a container that occurs again the first time. One that
/// holds itself is a RecursionError.
void for_each_leaf(nb::handle part, const std::function<void(nb::handle)>& f);

/// What f makes of each leaf in its place, of a container that occurs again each time: ranks call
/// collectives as often, whatever their containers share. One in which that changes nothing is
/// itself; others are new, of their own class and with their attributes.
/// Where `is_whole` is given it says of a list or tuple whether it is a leaf itself, and f sees the
/// keys of a dict, too, which stay.
nb::object with_each_leaf(nb::handle part, const std::function<nb::object(nb::handle)>& f,
                          const std::function<bool(nb::handle)>& is_whole = nullptr);

}  // namespace weft::python
