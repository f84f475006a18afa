// Python's exceptions with parts in their messages: type_error("expected a model, got {}", x).
#pragma once

#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <string>
#include <utility>

namespace weft::python {

namespace nb = nanobind;

template <class... Parts>
nb::builtin_exception type_error(fmt::format_string<Parts...> text, Parts&&... parts) {
  return nb::type_error(fmt::format(text, std::forward<Parts>(parts)...).c_str());
}
template <class... Parts>
nb::builtin_exception value_error(fmt::format_string<Parts...> text, Parts&&... parts) {
  return nb::value_error(fmt::format(text, std::forward<Parts>(parts)...).c_str());
}

/// The name of an object's class, for errors: "list", "numpy.ndarray".
inline std::string type_of(nb::handle object) { return nb::type_name(object.type()).c_str(); }

}  // namespace weft::python
