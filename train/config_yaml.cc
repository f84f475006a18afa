#include "train/config_yaml.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace weft::train {

std::string option_name(std::string key) {
  std::ranges::replace(key, '_', '-');
  return key;
}

std::string to_yaml(const Config& config, const Config* base) {
  std::string text;
  const nlohmann::json mine = to_json(config);
  const nlohmann::json others = base ? to_json(*base) : nlohmann::json();
  // JSON's values are YAML's.
  for (const auto& [key, value] : mine.items()) {
    if (base && value == others.at(key)) continue;
    text += fmt::format("{}: {}\n", option_name(key), value.dump());
  }
  return text;
}

}  // namespace weft::train
