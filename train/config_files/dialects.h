// What the readers of configuration files share. `values` are a file's, as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "train/config_files/config_file.h"

namespace weft::train {

/// A YAML document of at most 1 MiB, by the core schema of YAML 1.2, as JSON. Throws Error naming
/// file and line, also of a second document.
nlohmann::json parse_yaml(const std::string& file, std::string_view text);
/// The contents of a file, YAML or JSON. Throws Error as above.
nlohmann::json parse_values(const std::string& path);

/// Why parameters stay where they are before ZeRO's third stage, and the optimizer without ZeRO.
inline constexpr const char* kNotOffloaded =
    "only stage 3 offloads parameters, and stages 1 to 3 the optimizer";

// A dialect each. Those of others return the keys that a file of theirs may have at the top.
void read_own(const nlohmann::json& values, ConfigFile& file);
std::vector<std::string> read_accelerate(const nlohmann::json& values, ConfigFile& file);
std::vector<std::string> read_deepspeed(const nlohmann::json& values, ConfigFile& file);

}  // namespace weft::train
