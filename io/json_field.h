// Values of a JSON that somebody else may have written. What is wrong with one is told with its
// key:
//
//   step = io::field<int64_t>(state, "step");    // "step": expected a whole number, got "many"
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"
#include "io/quote.h"

namespace weft::io {

/// What a T is in JSON, in words, and whether a value is one. nlohmann turns any number into any
/// other, and one that is out of T's range into anything. Of a T that is not among these nlohmann
/// has the word.
template <class T>
struct JsonKind {
  static constexpr const char* kName = "something else";
  static bool fits(const nlohmann::json&) { return true; }
};
template <>
struct JsonKind<bool> {
  static constexpr const char* kName = "true or false";
  static bool fits(const nlohmann::json& value) { return value.is_boolean(); }
};
template <std::integral T>
requires(!std::same_as<T, bool>) struct JsonKind<T> {
  static constexpr const char* kName = "a whole number";
  static bool fits(const nlohmann::json& value) {
    if (value.is_number_unsigned()) return std::in_range<T>(value.get<uint64_t>());
    if (value.is_number_integer()) return std::in_range<T>(value.get<int64_t>());
    const double x = value.is_number() ? value.get<double>() : NAN;  // 1e5 is a whole number, too
    return x == std::trunc(x) && std::abs(x) <= 0x1p53 && std::in_range<T>(static_cast<int64_t>(x));
  }
};
template <std::floating_point T>
struct JsonKind<T> {
  static constexpr const char* kName = "a number";
  static bool fits(const nlohmann::json& value) { return value.is_number(); }
};
template <>
struct JsonKind<std::string> {
  static constexpr const char* kName = "text";
  static bool fits(const nlohmann::json& value) { return value.is_string(); }
};
template <class A, class B>
struct JsonKind<std::pair<A, B>> {
  static constexpr const char* kName = "a pair";
  static bool fits(const nlohmann::json& value) {
    return value.is_array() && value.size() == 2 && JsonKind<A>::fits(value[0]) &&
           JsonKind<B>::fits(value[1]);
  }
};
template <class T>
struct JsonKind<std::vector<T>> {
  static constexpr const char* kName = "a list";
  static bool fits(const nlohmann::json& value) {
    return value.is_array() && std::ranges::all_of(value, &JsonKind<T>::fits);
  }
};
template <class T, size_t N>
struct JsonKind<std::array<T, N>> {
  static constexpr const char* kName = "a list";
  static bool fits(const nlohmann::json& value) {
    return JsonKind<std::vector<T>>::fits(value) && value.size() == N;
  }
};
template <class T, class Less>
struct JsonKind<std::map<std::string, T, Less>> {
  static constexpr const char* kName = "an object";
  static bool fits(const nlohmann::json& value) {
    return value.is_object() && std::ranges::all_of(value, &JsonKind<T>::fits);
  }
};

/// For a message: a text in quotes, anything else as JSON, cut where it is long.
inline std::string shown(const nlohmann::json& value) {
  if (value.is_string()) return quote(value.get_ref<const std::string&>());
  return value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).substr(0, 120);
}

/// A value as a T. Throws Error naming `key` where it is none.
template <class T>
T value_of(const nlohmann::json& value, std::string_view key) {
  bool fits = JsonKind<T>::fits(value);
  T result = {};
  try {
    if (fits) result = value.get<T>();
  } catch (const nlohmann::json::exception&) {
    fits = false;
  }
  WEFT_CHECK(fits, "\"{}\": expected {}, got {}", key, JsonKind<T>::kName, shown(value));
  return result;
}

/// A member of an object. Throws Error where there is none.
inline const nlohmann::json& field(const nlohmann::json& object, const std::string& key) {
  WEFT_CHECK(object.is_object(), "expected an object with \"{}\", got {}", key, shown(object));
  const auto found = object.find(key);
  WEFT_CHECK(found != object.end(), "\"{}\" is missing", key);
  return *found;
}
/// The same as a T.
template <class T>
T field(const nlohmann::json& object, const std::string& key) {
  return value_of<T>(field(object, key), key);
}
template <class T>
void read_field(const nlohmann::json& object, const std::string& key, T& value) {
  value = field<T>(object, key);
}
/// A member that is an object, whose fields are to be read.
inline const nlohmann::json& object_field(const nlohmann::json& object, const std::string& key) {
  const nlohmann::json& inner = field(object, key);
  WEFT_CHECK(inner.is_object(), "\"{}\": expected an object, got {}", key, shown(inner));
  return inner;
}
/// A member that is a list, to iterate over.
inline const nlohmann::json& list_field(const nlohmann::json& object, const std::string& key) {
  const nlohmann::json& list = field(object, key);
  WEFT_CHECK(list.is_array(), "\"{}\": expected a list, got {}", key, shown(list));
  return list;
}

/// What f() returns; an Error of its begins with the place of what it reads.
template <class F>
auto read_at(const std::string& place, const F& f) {
  try {
    return f();
  } catch (const Error& error) {
    WEFT_FAIL("{}: {}", place, error.what());
  }
}

}  // namespace weft::io
