// Loaders as Python's iterators, and items by their places.
#pragma once

#include <nanobind/stl/unique_ptr.h>

#include <memory>

#include "core/error.h"
#include "python/casters.h"

namespace weft::python {

/// The next batch of a loader; at the end of an epoch StopIteration, of which `is_done` tells.
template <class Loader>
auto next_of(Loader& loader, bool* is_done = nullptr) {
  auto batch = [&] {
    const nb::gil_scoped_release unlocked;
    return loader.next();
  }();
  if (is_done) *is_done = !batch;
  if (!batch) throw nb::stop_iteration();
  return std::move(*batch);
}

/// One iteration of a loader, whose place it moves.
template <class Loader>
class Iteration {
 public:
  explicit Iteration(Loader& loader) : loader_(loader), number_(loader.begin()) {}
  auto next() {
    if (is_done_) throw nb::stop_iteration();
    WEFT_CHECK(loader_.iteration() == number_,
               "loader: an iteration was gone on with after a later one of the same loader had "
               "begun: expected a loader for each");
    return next_of(loader_, &is_done_);
  }

 private:
  Loader& loader_;
  const int64_t number_;
  bool is_done_ = false;
};

/// Iterations, each of which begins as the loader's begin() says, and next(loader). `object_of`
/// makes a batch Python's.
template <class Loader, class... Extra, class ObjectOf>
void define_iteration(nb::module_& m, const char* name, nb::class_<Loader, Extra...>& bound,
                      ObjectOf object_of) {
  using Pass = Iteration<Loader>;
  nb::class_<Pass>(m, name, "One iteration of a loader.")
      .def("__iter__", [](nb::handle_t<Pass> self) { return nb::borrow(self); })
      .def("__next__", [object_of](Pass& self) { return object_of(self.next()); });
  bound
      .def(
          "__iter__", [](Loader& self) { return std::make_unique<Pass>(self); },
          nb::keep_alive<0, 1>())
      .def("__next__", [object_of](Loader& self) { return object_of(next_of(self)); });
}

/// A batch of tensors as a tuple.
inline nb::tuple tuple_of(const Tensors& batch) { return nb::tuple(nb::cast(batch)); }

/// The place of an item of so many, which may be counted from the end. Throws IndexError: "sample 7
/// of 5".
inline int64_t place_of(const char* what, int64_t i, int64_t size) {
  if (i < 0) i += size;
  if (i >= 0 && i < size) return i;
  throw nb::index_error(fmt::format("{} {} of {}", what, i, size).c_str());
}

/// (epoch, batch) of a loader that can be asked and told where it stands.
template <class Loader, class... Extra>
void define_position(nb::class_<Loader, Extra...>& bound) {
  bound.def_prop_rw(
      "position", [](const Loader& l) { return std::pair(l.position().epoch, l.position().batch); },
      [](Loader& l, std::pair<int64_t, int64_t> position) {
        l.seek({.epoch = position.first, .batch = position.second});
      },
      "(epoch, batch) to come: set, it continues a run exactly.");
}

}  // namespace weft::python
