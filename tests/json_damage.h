// What may be wrong with a JSON file besides its bytes, for tests of those who read one.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace weft {

/// Calls check(damaged, key) with `whole` changed in one place after the other: a key left out, one
/// too many ("levitation"), an element too few, a value of each other kind. `key` is the innermost
/// key around the place, empty at the top.
inline void for_each_damage(
    const nlohmann::json& whole,
    const std::function<void(const nlohmann::json& damaged, const std::string& key)>& check,
    const nlohmann::json::json_pointer& place = nlohmann::json::json_pointer(),
    const std::string& key = std::string()) {
  using nlohmann::json;
  const json& here = whole.at(place);
  for (const json& other : {json(true), json(-7), json(0.5), json("text"), json::array({1}),
                            json::object({{"a", 1}}), json(nullptr)}) {
    if (other.type() == here.type() || (other.is_number() && here.is_number())) continue;
    json damaged = whole;
    damaged.at(place) = other;
    check(damaged, key);
  }
  if (here.is_object()) {
    json more = whole;
    more.at(place)["levitation"] = 3;
    check(more, "levitation");
    for (const auto& [name, value] : here.items()) {
      json less = whole;
      less.at(place).erase(name);
      check(less, name);
      for_each_damage(whole, check, place / name, name);
    }
  } else if (here.is_array() && !here.empty()) {
    json less = whole;
    less.at(place).erase(0);
    check(less, key);
    for_each_damage(whole, check, place / size_t{0}, key);
  }
}

}  // namespace weft
