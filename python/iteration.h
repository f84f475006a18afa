// Loaders as Python's iterators, and items by their places.
#pragma once

#include "python/casters.h"

namespace weft::python {

/// The next batch of a loader; at the end of an epoch StopIteration.
template <class Loader>
auto next_of(Loader& loader) {
  auto batch = [&] {
    const nb::gil_scoped_release unlocked;
    return loader.next();
  }();
  if (!batch) throw nb::stop_iteration();
  return std::move(*batch);
}

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
