#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <nlohmann/json.hpp>  // IWYU pragma: export

namespace weft::cli {

/// Prints a JSON object as one line.
inline void print_json(const nlohmann::ordered_json& json, std::FILE* out = stdout) {
  fmt::print(out, "{}\n", json.dump());
}

}  // namespace weft::cli
