#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <nlohmann/json.hpp>  // IWYU pragma: export

namespace weft::cli {

/// Prints a JSON object as one line; U+FFFD for bytes that are not UTF-8, as of a file's name.
inline void print_json(const nlohmann::ordered_json& json, std::FILE* out = stdout) {
  fmt::print(out, "{}\n",
             json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace weft::cli
