// Structs of options as keyword arguments: one list of members gives names, types, defaults and
// stubs.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "python/casters.h"

namespace weft::python {

/// A member of a struct, `access(struct)`, under its name in Python.
template <class Access>
struct Field {
  const char* name;
  Access access;
};
template <class Access>
Field(const char*, Access) -> Field<Access>;

/// The fields of a struct that is a member of another, as fields of that one.
template <class Part, class... Access>
auto fields_of(Part part, const std::tuple<Field<Access>...>& fields) {
  const auto of_part = [part](const auto& access) {
    return [part, access](auto& whole) -> decltype(auto) {
      return std::invoke(access, std::invoke(part, whole));
    };
  };
  return std::apply(
      [&](const Field<Access>&... field) {
        return std::tuple(Field{field.name, of_part(field.access)}...);
      },
      fields);
}

/// How a member crosses between the languages: by default as itself.
template <class T>
struct Conversion {
  using Argument = T;
  static const T& to_python(const T& value) { return value; }
  static T from_python(T argument) { return argument; }
};

/// The names of an enumeration's values.
template <class E>
struct Names;

/// An enumeration crosses by name. Throws Error naming a name that there is not.
template <class E>
requires requires { Names<E>::kAll; }
struct Conversion<E> {
  using Argument = std::string;
  static std::string to_python(E value) {
    return std::ranges::find(Names<E>::kAll, value, [](const auto& n) { return n.second; })->first;
  }
  static E from_python(const std::string& name) {
    std::string all;
    for (const auto& [known, value] : Names<E>::kAll) {
      if (name == known) return value;
      all += fmt::format("{}\"{}\"", all.empty() ? "" : ", ", known);
    }
    WEFT_FAIL("{}: expected one of {}, got \"{}\"", Names<E>::kOption, all, name);
  }
};

template <class Access, class Options>
using ConversionOf = Conversion<std::remove_cvref_t<std::invoke_result_t<Access, Options&>>>;

/// Defines __init__ with the fields as keyword arguments: the bound class made of Options.
template <class Options, class Bound, class... Access>
void define_init(Bound& bound, const std::tuple<Field<Access>...>& fields) {
  std::apply(
      [&](const Field<Access>&... field) {
        Options defaults;
        bound.def(
            "__init__",
            [... access = field.access](
                typename Bound::Type* self,
                typename ConversionOf<Access, Options>::Argument... arguments) {
              Options options;
              ((std::invoke(access, options) =
                    ConversionOf<Access, Options>::from_python(std::move(arguments))),
               ...);
              new (self) typename Bound::Alias(std::move(options));
            },
            nb::kw_only(),
            (nb::arg(field.name) =
                 ConversionOf<Access, Options>::to_python(std::invoke(field.access, defaults)))...);
      },
      fields);
}

}  // namespace weft::python
