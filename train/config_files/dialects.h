// What the readers of configuration files share. `values` are a file's, as JSON.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "train/config_files/config_file.h"

namespace weft::train {

/// A YAML document, by the core schema of YAML 1.2, as JSON. Throws Error naming file and line.
nlohmann::json parse_yaml(const std::string& file, const std::string& text);
/// The contents of a file, YAML or JSON. Throws Error as above.
nlohmann::json parse_values(const std::string& path);

// A dialect each. `is_...`: whether the keys are its own.
void read_own(const nlohmann::json& values, ConfigFile& file);
bool is_accelerate(const nlohmann::json& values);
void read_accelerate(const nlohmann::json& values, ConfigFile& file);
bool is_deepspeed(const nlohmann::json& values);
void read_deepspeed(const nlohmann::json& values, ConfigFile& file);
/// Of its "scheduler": the factor on the learning rate `lr` at each step.
std::function<double(int64_t)> deepspeed_schedule(const std::string& file,
                                                  const nlohmann::json& scheduler, double lr);

}  // namespace weft::train
