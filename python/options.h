// Structs of options as keyword arguments: one list of members gives names, types, defaults and
// stubs.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "io/nearest.h"
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
/// One that has the member's own name.
#define WEFT_FIELD(Options, member) \
  Field { #member, &Options::member }

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

/// The names of an enumeration's values: kAll, a NameList, and kOption, the option that they are
/// of.
template <class E>
struct Names;
template <class E>
using NameList = std::initializer_list<std::pair<const char*, E>>;

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

/// Whether None stands for an option's default, as where Lightning's own is None. Where an option's
/// Argument is optional, None has a meaning of the option's own instead.
template <class Options>
inline constexpr bool kNoneIsDefault = true;

template <class Argument>
struct OrNone {
  using type = std::optional<Argument>;
};
template <class T>
struct OrNone<std::optional<T>> {
  using type = std::optional<T>;
};
/// What __init__ takes for a member.
template <class Access, class Options,
          class Argument = typename ConversionOf<Access, Options>::Argument>
using TakenOf = typename std::conditional_t<kNoneIsDefault<Options>, OrNone<Argument>,
                                            std::type_identity<Argument>>::type;

/// Sets a member to what was given for it.
template <class Access, class Options>
void set_option(const Access& access, Options& options, TakenOf<Access, Options> given) {
  using Its = ConversionOf<Access, Options>;
  if constexpr (std::is_same_v<decltype(given), typename Its::Argument>) {
    std::invoke(access, options) = Its::from_python(std::move(given));
  } else if (given) {
    std::invoke(access, options) = Its::from_python(*std::move(given));
  }
}

/// What __init__ did not take: throws a TypeError naming the argument, and what was probably meant.
template <class Options, class... Access>
[[noreturn]] void refuse_arguments(const std::string& name, const nb::args& positional,
                                   const nb::kwargs& given,
                                   const std::tuple<Field<Access>...>& fields) {
  const auto refuse = [&](const std::string& why) { throw type_error("{}: {}", name, why); };
  if (positional.size() > 0) {
    refuse(
        fmt::format("expected keyword arguments alone, got {} without a name", positional.size()));
  }
  const std::vector<std::string> known = std::apply(
      [](const auto&... field) { return std::vector<std::string>{field.name...}; }, fields);
  for (const auto& [key, value] : given) {
    const auto argument = nb::cast<std::string>(key);
    if (std::ranges::count(known, argument) == 0) {
      refuse(fmt::format("unknown option \"{}\"{}", argument, io::did_you_mean(argument, known)));
    }
    const auto check = [&]<class A>(const Field<A>& field) {
      TakenOf<A, Options> taken{};
      if (argument != field.name || nb::try_cast(nb::handle(value), taken)) return;
      refuse(fmt::format("{}: unexpected {}, of type {}", argument, nb::repr(value).c_str(),
                         type_of(value)));
    };
    std::apply([&](const auto&... field) { (check(field), ...); }, fields);
  }
  // Nothing: nanobind comes here before it has tried conversions, such as an int's to a float.
  throw nb::next_overload();
}

/// Defines __init__ with the fields as keyword arguments: the bound class made of Options.
template <class Options, class Bound, class... Access>
void define_init(Bound& bound, const std::tuple<Field<Access>...>& fields) {
  std::apply(
      [&](const Field<Access>&... field) {
        Options defaults;
        bound.def(
            "__init__",
            [... access = field.access](typename Bound::Type* self,
                                        TakenOf<Access, Options>... arguments) {
              Options options;
              (set_option(access, options, std::move(arguments)), ...);
              new (self) typename Bound::Alias(std::move(options));
            },
            nb::kw_only(),
            (nb::arg(field.name) =
                 ConversionOf<Access, Options>::to_python(std::invoke(field.access, defaults)))...);
      },
      fields);
  bound.def(
      "__init__",
      [fields, name = nb::cast<std::string>(bound.attr("__name__"))](
          typename Bound::Type*, const nb::args& positional, const nb::kwargs& given) {
        refuse_arguments<Options>(name, positional, given, fields);
      },
      nb::sig("def __init__(self, *args: typing.NoReturn, **kwargs: typing.NoReturn) -> None"));
}

}  // namespace weft::python
