#include "train/config_files/config_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/device.h"
#include "core/error.h"
#include "dist/strategy/strategy_kind.h"
#include "io/checked_json.h"
#include "io/files.h"
#include "io/json_field.h"
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
              io::shown(value));
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

using Reader = decltype(&read_deepspeed);

/// The keys that a dialect's files may have: its reader knows.
std::vector<std::string> keys_of(Reader reader) {
  ConfigFile nothing;
  return reader(nlohmann::json::object(), nothing);
}

/// A key that ours and another dialect have is ours unless it stands for a section.
bool is_own(const std::string& name, const nlohmann::json& value) {
  static const nlohmann::json& usual = *new nlohmann::json(to_json(Config()));
  std::string key = name;
  std::ranges::replace(key, '-', '_');
  return usual.contains(key) && !value.is_object();
}

/// The dialect that most keys are of.
std::string dialect_of(const nlohmann::json& values) {
  static const auto& accelerate = *new std::vector(keys_of(read_accelerate));
  static const auto& deepspeed = *new std::vector(keys_of(read_deepspeed));
  int64_t of_accelerate = 0, of_deepspeed = 0, of_ours = 0;
  for (const auto& [key, value] : values.items()) {
    if (is_own(key, value)) {
      ++of_ours;
      continue;
    }
    of_accelerate += std::ranges::count(accelerate, key) > 0;
    of_deepspeed += std::ranges::count(deepspeed, key) > 0;
  }
  if (of_accelerate > of_deepspeed && of_accelerate >= of_ours) return "accelerate";
  return of_deepspeed > 0 && of_deepspeed >= of_ours ? "deepspeed" : "weft";
}

}  // namespace

nlohmann::json parse_values(const std::string& path) {
  const io::MappedFile file(path);  // too large a one is refused unread
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_json =
      path.ends_with(".json") || (first != std::string::npos && text[first] == '{');
  return is_json ? io::parse_json(text, path) : parse_yaml(path, text);
}

void read_own(const nlohmann::json& values, ConfigFile& file) {
  const nlohmann::json usual = to_json(Config());
  const std::map<std::string, std::string*> places = {{"device", &file.device},
                                                      {"hosts", &file.hostfile}};
  std::vector<std::string> names;
  for (const auto& [key, value] : usual.items()) names.push_back(option_name(key));
  for (const auto& [key, text] : places) names.push_back(key);
  for (const auto& [name, value] : values.items()) {
    std::string key = name;
    std::ranges::replace(key, '-', '_');
    const auto place = places.find(key);
    WEFT_CHECK(place != places.end() || usual.contains(key), "{}: unknown key {}{}", file.path,
               io::quote(name), io::did_you_mean(name, names));
    WEFT_CHECK(!file.keys.contains(key), "{}: the key \"{}\" is there twice", file.path, name);
    if (value.is_null()) continue;
    if (place != places.end()) {
      file.keys[key] = name;
      *place->second = as_type_of("", value, file, key).get<std::string>();
    } else if (key == "devices" && (value == "auto" || value == -1)) {
      file.set_all_devices(name);
    } else {
      file.set(key, value, name);
    }
  }
  if (file.device.empty()) return;
  io::read_at(file.path + ": key \"device\"", [&] { parse_device(file.device); });
}

ConfigFile read_config_file(const std::string& path) {
  return read_config(parse_values(path), path);
}

ConfigFile read_config(const nlohmann::json& values, const std::string& name) {
  ConfigFile file;
  file.path = name;
  if (values.is_null()) return file;
  WEFT_CHECK(values.is_object(), "{}: expected keys with values, got {}", name, io::shown(values));
  file.dialect = dialect_of(values);
  if (file.dialect == "accelerate") {
    read_accelerate(values, file);
  } else if (file.dialect == "deepspeed") {
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
  return io::read_at(file.path, [&] { return config_from_json(json); });
}

const char* apply_communication_dtype(const ConfigFile& file, Config& config) {
  if (file.communication_dtype.empty()) return nullptr;
  const int devices = static_cast<int>(config.devices);
  const dist::Settings own = dist::strategy_of(config.strategy, devices).settings;
  if (contains(own, dist::Settings::kMixedPrecision)) {
    config.strategy.reduce_dtype = file.communication_dtype;
    return "reduce_dtype";
  }
  if (contains(own, dist::Settings::kBuckets)) {
    config.strategy.compress_dtype = file.communication_dtype;
    return "compress_dtype";
  }
  return nullptr;
}

void apply(const BatchRule& rule, const std::string& file, Config& config) {
  if (rule.micro > 0) config.batch_size = rule.micro;
  if (rule.accumulation > 0) config.accumulate = rule.accumulation;
  if (rule.total == 0) return;
  // Each factor by the file's name and the command line's.
  std::vector<std::string> factors;
  int64_t product = 1;
  const auto given = [&](const std::string& name, int64_t value) {
    factors.push_back(fmt::format("{} {}", name, value));
    if (__builtin_mul_overflow(product, value, &product)) product = INT64_MAX;
  };
  const std::string micro = "train_micro_batch_size_per_gpu (--batch-size)";
  const std::string accumulation = "gradient_accumulation_steps (--accumulate)";
  // What is not given is what is missing to the total; of two, one of them is 1.
  const auto missing = [&] {
    WEFT_CHECK(rule.total % product == 0,
               "{}: key \"train_batch_size\": expected {} x {} x devices: a multiple of {} = {}, "
               "got {}",
               file, micro, accumulation, fmt::join(factors, " x "), product, rule.total);
    return rule.total / product;
  };
  const bool is_split = config.global_batch_size > 0;
  if (is_split) {
    given("--global-batch-size", config.global_batch_size);
  } else {
    given("devices", std::max(1, sharing_of(config).data_devices()));
    if (rule.micro > 0) given(micro, rule.micro);
  }
  if (rule.accumulation > 0) given(accumulation, rule.accumulation);
  if (!is_split && rule.micro == 0) {
    config.batch_size = missing();
    if (rule.accumulation == 0) config.accumulate = 1;
  } else if (rule.accumulation == 0) {
    config.accumulate = missing();
  } else {
    WEFT_CHECK(rule.total == product, "{}: key \"train_batch_size\": expected {} = {}, got {}",
               file, fmt::join(factors, " x "), product, rule.total);
  }
}

}  // namespace weft::train
