#include "train/config_files/config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "io/files.h"
#include "io/nearest.h"
#include "train/config_files/dialects.h"
#include "train/config_yaml.h"

namespace weft::train {
namespace {

/// `value` as a setting of `usual`'s type; throws Error naming what was expected.
nlohmann::json as_type_of(const nlohmann::json& usual, const nlohmann::json& value,
                          const ConfigFile& file, const std::string& key) {
  const auto fail = [&](const char* expected) {
    WEFT_FAIL("{}: key \"{}\": expected {}, got {}", file.path, file.keys.at(key), expected,
              value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  };
  if (usual.is_boolean()) {
    if (!value.is_boolean()) fail("true or false");
    return value;
  }
  if (usual.is_number_integer()) {
    const double number = value.is_number() ? value.get<double>() : NAN;
    if (std::isnan(number) || number != std::trunc(number)) fail("a whole number");
    if (usual.is_number_unsigned() && number < 0) fail("a whole number, 0 or more");
    if (value.is_number_integer()) return value;
    if (std::abs(number) > 0x1p53) fail("a smaller number");
    return static_cast<int64_t>(number);
  }
  if (usual.is_number()) {
    if (!value.is_number()) fail("a number");
    return value;
  }
  if (usual.is_array()) {
    if (value.is_string()) return nlohmann::json::array({value});
    // An empty list is one of texts.
    const bool takes_numbers = !usual.empty() && usual[0].is_number();
    const bool is_right = value.is_array() && std::ranges::all_of(value, [&](const auto& item) {
                            return takes_numbers ? item.is_number() : item.is_string();
                          });
    if (!is_right) fail(takes_numbers ? "a list of numbers" : "a list of texts");
    return value;
  }
  if (value.is_number()) return value.dump();  // "loss-scale: 1024"
  if (!value.is_string()) fail("a text");
  return value;
}

}  // namespace

nlohmann::json parse_values(const std::string& path) {
  const std::string text = io::read_text(path);
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_json =
      path.ends_with(".json") || (first != std::string::npos && text[first] == '{');
  if (!is_json) return parse_yaml(path, text);
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(error.byte, text.size()));
    WEFT_FAIL("{}: line {}: expected JSON", path, std::count(text.begin(), end, '\n') + 1);
  }
}

void read_own(const nlohmann::json& values, ConfigFile& file) {
  const nlohmann::json usual = to_json(Config());
  std::vector<std::string> names;
  for (const auto& [key, value] : usual.items()) names.push_back(option_name(key));
  for (const auto& [name, value] : values.items()) {
    std::string key = name;
    std::ranges::replace(key, '-', '_');
    WEFT_CHECK(usual.contains(key), "{}: unknown key \"{}\"{}", file.path, name,
               io::did_you_mean(name, names));
    WEFT_CHECK(!file.settings.contains(key), "{}: the key \"{}\" is there twice", file.path, name);
    if (value.is_null()) continue;
    file.set(key, value, name);
  }
}

ConfigFile read_config_file(const std::string& path) {
  return read_config(parse_values(path), path);
}

ConfigFile read_config(const nlohmann::json& values, const std::string& name) {
  ConfigFile file;
  file.path = name;
  if (values.is_null()) return file;
  WEFT_CHECK(values.is_object(), "{}: expected keys with values, got {}", name,
             values.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  if (is_accelerate(values)) {
    file.dialect = "accelerate";
    read_accelerate(values, file);
  } else if (is_deepspeed(values)) {
    file.dialect = "deepspeed";
    read_deepspeed(values, file);
  } else {
    read_own(values, file);
  }
  const nlohmann::json usual = to_json(Config());
  for (auto& [key, value] : file.settings.items()) {
    value = as_type_of(usual.at(key), value, file, key);
  }
  with_file(Config(), file);  // what has a type of its own, such as a schedule
  return file;
}

Config with_file(const Config& config, const ConfigFile& file) {
  nlohmann::json json = to_json(config);
  for (const auto& [key, value] : file.settings.items()) {
    json[key] = as_type_of(json.at(key), value, file, key);
  }
  try {
    return config_from_json(json);
  } catch (const Error& error) {
    WEFT_FAIL("{}: {}", file.path, error.what());
  }
}

void apply(const BatchRule& rule, const std::string& file, Config& config) {
  if (rule.micro > 0) config.batch_size = rule.micro;
  if (rule.accumulation > 0) config.accumulate = rule.accumulation;
  if (rule.total == 0) return;
  const int64_t devices = sharing_of(config).data_devices();
  const auto divided = [&](int64_t by) {
    WEFT_CHECK(rule.total % by == 0 && rule.total >= by,
               "{}: key \"train_batch_size\": expected train_micro_batch_size_per_gpu x "
               "gradient_accumulation_steps x devices, a multiple of {}, got {}",
               file, by, rule.total);
    return rule.total / by;
  };
  if (rule.micro > 0 && rule.accumulation == 0) {
    config.accumulate = divided(rule.micro * devices);
  } else if (rule.micro == 0) {
    config.accumulate = std::max<int64_t>(1, rule.accumulation);
    config.batch_size = divided(config.accumulate * devices);
  } else {
    WEFT_CHECK(divided(rule.micro * rule.accumulation) == devices,
               "{}: key \"train_batch_size\": {} is train_micro_batch_size_per_gpu {} x "
               "gradient_accumulation_steps {} x {} devices, and the run has {}",
               file, rule.total, rule.micro, rule.accumulation,
               rule.total / (rule.micro * rule.accumulation), devices);
  }
}

}  // namespace weft::train
