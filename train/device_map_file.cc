#include "train/device_map_file.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "core/available_memory.h"
#include "core/runtime.h"
#include "io/checked_json.h"
#include "io/json_field.h"
#include "io/nearest.h"
#include "io/safetensors_index.h"
#include "kernels/device/probe.h"

namespace weft::train {
namespace {

const std::vector<std::string>& place_words() {
  static const std::vector<std::string> words = {"cpu", "cuda", "disk", "emulated"};
  return words;
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

/// Whether it reads as a place, right or wrong: "cuda:x" does.
bool is_like_place(const std::string& text) {
  return is_number(text) || std::ranges::count(place_words(), text.substr(0, text.find(':'))) > 0;
}

nn::Place place_in(const nlohmann::json& value) {
  if (value.is_number_unsigned() && io::JsonKind<int>::fits(value)) {
    return Device{DeviceType::cuda, value.get<int>()};
  }
  WEFT_CHECK(value.is_string(), "expected cpu, disk, cuda:N or a GPU's number, got {}",
             io::shown(value));
  return parse_place(value.get<std::string>());
}

}  // namespace

nn::Place parse_place(const std::string& text) {
  if (text == "disk") return {};
  WEFT_CHECK(is_like_place(text),
             "unknown device \"{}\": expected cpu, disk, cuda:N or a GPU's number{}", text,
             io::did_you_mean(text, place_words()));
  return parse_device(is_number(text) ? "cuda:" + text : text);
}

Device parse_budgeted_device(const std::string& text) {
  const nn::Place place = parse_place(text);
  WEFT_CHECK(place, "disk has no memory budget: what no device has room for rests there");
  return *place;
}

nn::DeviceMap parse_device_map(const std::string& text) {
  if (is_like_place(text)) {
    nn::DeviceMap map{.places = {{"", parse_place(text)}}};
    const nn::Place& place = map.places[0].second;
    if (place && place->type == DeviceType::cuda) map.main = *place;
    return map;
  }
  if (std::filesystem::exists(text)) return read_device_map(text);
  std::vector<std::string> words = place_words();
  words.emplace_back("auto");
  WEFT_FAIL(
      "device map: there is no file \"{}\"; expected auto, cpu, disk, cuda:N, a GPU's number or a "
      "JSON file{}",
      text, io::did_you_mean(text, words));
}

nn::DeviceMap read_device_map(const io::Path& file) {
  const nlohmann::ordered_json json = io::parse_ordered_json(io::read_text(file), file);
  WEFT_CHECK(json.is_object() && !json.empty(),
             "{}: expected a JSON object from module names to places", file.string());
  nn::DeviceMap map;
  for (const auto& [name, value] : json.items()) {
    map.places.emplace_back(name, io::read_at(fmt::format("{}: \"{}\"", file.string(), name),
                                              [&value = value] { return place_in(value); }));
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
    budgets.emplace_back(parse_budgeted_device(part.substr(0, equals)),
                         io::parse_bytes(part.substr(equals + 1)));
  }
  return budgets;
}

nn::MemoryBudgets available_budgets() {
  const auto most_of = [](int64_t bytes) { return std::max<int64_t>(0, bytes / 10 * 9); };
  nn::MemoryBudgets budgets;
  const int gpus = runtime::is_emulated() ? 0 : runtime::device_count();
  for (int i = 0; i < gpus; ++i) {
    const Device gpu{DeviceType::cuda, i};
    if (!kernels::is_usable(gpu)) continue;
    budgets.emplace_back(gpu, most_of(static_cast<int64_t>(runtime::memory_info(i).free)));
  }
  budgets.emplace_back(Device{}, most_of(available_memory()));
  return budgets;
}

}  // namespace weft::train
