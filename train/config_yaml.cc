#include "train/config_yaml.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace weft::train {

std::string option_name(std::string key) {
  std::ranges::replace(key, '_', '-');
  return key;
}

std::string to_yaml(const Config& config) {
  std::string text;
  const nlohmann::json mine = to_json(config);
  // JSON's values are YAML's.
  for (const auto& [key, value] : mine.items()) {
    text += fmt::format("{}: {}\n", option_name(key), value.dump());
  }
  return text;
}

std::string to_yaml(const Config& config, const Config& base) {
  std::string text;
  const nlohmann::json mine = to_json(config), others = to_json(base);
  for (const auto& [key, value] : mine.items()) {
    if (value != others.at(key)) {
      text += fmt::format("{}: {}\n", option_name(key), value.dump());
    }
  }
  return text;
}

}  // namespace weft::train
