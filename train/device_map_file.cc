#include "train/device_map_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "io/checked_json.h"
#include "io/json_field.h"
#include "io/safetensors_index.h"

namespace weft::train {
namespace {

nn::Place parse_place(const nlohmann::json& value) {
  if (value.is_number_unsigned() && io::JsonKind<int>::fits(value)) {
    return Device{DeviceType::cuda, value.get<int>()};
  }
  WEFT_CHECK(value.is_string(), "expected cpu, disk, cuda:N or a GPU's number, got {}",
             io::shown(value));
  if (value == "disk") return {};
  return parse_device(value.get<std::string>());
}

}  // namespace

nn::DeviceMap read_device_map(const io::Path& file) {
  const nlohmann::ordered_json json = io::parse_ordered_json(io::read_text(file), file);
  WEFT_CHECK(json.is_object() && !json.empty(),
             "{}: expected a JSON object from module names to places", file.string());
  nn::DeviceMap map;
  for (const auto& [name, value] : json.items()) {
    try {
      map.places.emplace_back(name, parse_place(value));
    } catch (const Error& error) {
      WEFT_FAIL("{}: \"{}\": {}", file.string(), name, error.what());
    }
  }
  const auto gpu = std::ranges::find_if(map.places, [](const auto& entry) {
    return entry.second && entry.second->type == DeviceType::cuda;
  });
  if (gpu != map.places.end()) map.main = *gpu->second;
  return map;
}

nn::MemoryBudgets parse_memory_budgets(const std::string& text) {
  nn::MemoryBudgets budgets;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t equals = part.find('=');
    WEFT_CHECK(equals != part.npos, "\"{}\": expected DEVICE=SIZE, such as cpu=4GB", part);
    budgets.emplace_back(parse_device(part.substr(0, equals)),
                         io::parse_bytes(part.substr(equals + 1)));
  }
  return budgets;
}

}  // namespace weft::train
