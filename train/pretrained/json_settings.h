// Settings of the JSON files that lie beside weights.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "io/files.h"
#include "io/json_field.h"

namespace weft::train {

/// An object; an empty one where there is no file. Throws Error naming a file that is too large or
/// no JSON object, or nested too deep (io/checked_json.h).
nlohmann::json read_json(const io::Path& path);

/// Reads a setting of a JSON object; where it is absent or null the value stays. Throws Error
/// naming `place` for a value of another type.
template <class T>
void get(const nlohmann::json& object, const std::string& place, const char* key, T& value) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return;
  value = io::read_at(place, [&] { return io::value_of<T>(*found, key); });
}

}  // namespace weft::train
