#include "models/gpt_names.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "io/nearest.h"

namespace weft::models {
namespace {

const std::vector<std::pair<std::string, GptConfig>>& list() {
  static const std::vector<std::pair<std::string, GptConfig>> all = {
      {"gpt", {.tied_head = false}},
      {"gpt_mini",
       {.context = 64, .width = 64, .layers = 2, .kv_heads = 2, .hidden = 172, .tied_head = false}},
  };
  return all;
}

}  // namespace

GptConfig gpt_config(const std::string& name) {
  const auto found = std::ranges::find(list(), name, [](const auto& entry) { return entry.first; });
  const std::vector<std::string> known = gpt_names();
  WEFT_CHECK(found != list().end(), "unknown language model \"{}\"; known are {}{}", name,
             fmt::join(known, ", "), io::did_you_mean(name, known));
  return found->second;
}

std::vector<std::string> gpt_names() {
  std::vector<std::string> names;
  for (const auto& [name, config] : list()) names.push_back(name);
  return names;
}

}  // namespace weft::models
