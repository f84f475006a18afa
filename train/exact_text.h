// Numbers in JSON, which has no infinities and no NaN: as text that reads back with the same bits.
#pragma once

#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "core/error.h"

namespace weft::train {

inline std::string exact_text(double value) { return fmt::format("{}", value); }

/// Throws Error for what is no number.
inline double exact_number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  WEFT_CHECK(!text.empty() && end == text.c_str() + text.size(), "not a number: \"{}\"", text);
  return value;
}

}  // namespace weft::train
