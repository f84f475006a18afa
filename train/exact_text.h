// Numbers in JSON, which has no infinities and no NaN: as text that reads back with the same bits.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <string>

#include "core/error.h"

namespace weft::train {

inline std::string exact_text(double value) { return fmt::format("{}", value); }

/// Throws Error for what is no number. Locales with a comma in their numbers change nothing.
inline double exact_number(const std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  WEFT_CHECK(error == std::errc() && rest == end, "not a number: \"{}\"", text);
  return value;
}

}  // namespace weft::train
