// Errors: a caller's mistake told apart from ours.
//
//   WEFT_CHECK(rows > 0, "softmax: expected at least one row, got shape {}", x.shape());
//   WEFT_ASSERT(index < nodes.size());
//
// WEFT_CHECK throws weft::Error with a message that names the op, the value and what was expected.
// WEFT_ASSERT throws weft::InternalError: a fault in Weft, reported with its place in the source.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>

namespace weft {

/// A mistake of the caller or of the environment: bad shapes, missing files, unknown names.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A broken invariant of Weft itself.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void throw_error(fmt::string_view format, fmt::format_args arguments);
[[noreturn]] void throw_internal_error(const char* condition, const char* file, int line);

/// Throws Error with a message in fmt's syntax, checked at compile time.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... arguments) {
  throw_error(format, fmt::make_format_args(arguments...));
}

/// Base of the formatters of types whose text takes no format options.
struct PlainFormatter {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }

 protected:
  static auto write(std::string_view text, fmt::format_context& context) {
    return std::copy(text.begin(), text.end(), context.out());
  }
};

}  // namespace weft

#define WEFT_FAIL(...) ::weft::fail(__VA_ARGS__)

#define WEFT_CHECK(condition, ...) \
  do {                             \
    if (!(condition)) [[unlikely]] \
      ::weft::fail(__VA_ARGS__);   \
  } while (false)

#define WEFT_ASSERT(condition)                                      \
  do {                                                              \
    if (!(condition)) [[unlikely]]                                  \
      ::weft::throw_internal_error(#condition, __FILE__, __LINE__); \
  } while (false)
