#include "io/section.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "core/error.h"
#include "io/json_field.h"
#include "io/nearest.h"

namespace weft::io {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

const nlohmann::json kNothing = nlohmann::json::object();

}  // namespace

Section::Section(std::string file, std::string path, const nlohmann::json& object)
    : file_(std::move(file)),
      path_(std::move(path)),
      object_(object.is_array() && object.empty() ? &kNothing : &object) {
  WEFT_CHECK(object_->is_object(), "{}: {}: expected keys with values, got {}", file_,
             path_.empty() ? "the file" : path_, shown(object));
}

std::string Section::path_of(const std::string& key) const {
  return path_.empty() ? key : path_ + "." + key;
}

const nlohmann::json* Section::value(const std::string& key) const {
  const auto found = object_->find(key);
  if (found == object_->end() || found->is_null() || *found == "auto") return nullptr;
  return &*found;
}

const nlohmann::json* Section::take(const std::string& key) {
  known_.push_back(key);
  return value(key);
}

bool Section::is_auto(const std::string& key) {
  known_.push_back(key);
  const auto found = object_->find(key);
  return found != object_->end() && *found == "auto";
}

std::string Section::fault(const std::string& key, const std::string& expected) const {
  const nlohmann::json* const found = value(key);
  return fmt::format("{}: key \"{}\": expected {}, got {}", file_, path_of(key), expected,
                     found ? shown(*found) : "none");
}

void Section::fail(const std::string& key, const std::string& expected) const {
  throw Error(fault(key, expected));
}

std::optional<bool> Section::boolean(const std::string& key) {
  const nlohmann::json* const found = take(key);
  if (!found) return {};
  if (found->is_boolean()) return found->get<bool>();
  const std::string text = found->is_string() ? lower(found->get<std::string>()) : "";
  if (text == "yes" || text == "true") return true;
  if (text == "no" || text == "false") return false;
  fail(key, "true or false");
}

std::optional<double> Section::number(const std::string& key) {
  const nlohmann::json* const found = take(key);
  if (!found) return {};
  if (!found->is_number() || !std::isfinite(found->get<double>())) fail(key, "a number");
  return found->get<double>();
}

std::optional<int64_t> Section::whole_number(const std::string& key) {
  const nlohmann::json* const found = take(key);
  if (!found) return {};
  // 5e8 is one as well.
  const double value = found->is_number() ? found->get<double>() : NAN;
  if (std::isnan(value) || value != std::trunc(value) || std::abs(value) > 0x1p53) {
    fail(key, "a whole number");
  }
  return found->is_number_integer() ? found->get<int64_t>() : static_cast<int64_t>(value);
}

std::optional<std::string> Section::text(const std::string& key) {
  const nlohmann::json* const found = take(key);
  if (!found) return {};
  if (found->is_number()) return found->dump();
  if (!found->is_string()) fail(key, "a text");
  return found->get<std::string>();
}

std::optional<std::vector<double>> Section::numbers(const std::string& key) {
  const nlohmann::json* const found = take(key);
  if (!found) return {};
  if (!found->is_array()) fail(key, "a list of numbers");
  std::vector<double> result;
  for (const nlohmann::json& item : *found) {
    if (!item.is_number()) fail(key, "a list of numbers");
    result.push_back(item.get<double>());
  }
  return result;
}

std::optional<std::string> Section::choice(const std::string& key,
                                           const std::vector<std::string>& choices) {
  const nlohmann::json* const found = take(key);
  if (!found) return {};
  const std::string given = found->is_string() ? found->get<std::string>() : shown(*found);
  const auto choice =
      std::ranges::find_if(choices, [&](const std::string& c) { return lower(c) == lower(given); });
  if (choice == choices.end()) {
    fail(key, fmt::format("one of {}{}", fmt::join(choices, ", "), did_you_mean(given, choices)));
  }
  return *choice;
}

Section Section::section(const std::string& key) {
  const nlohmann::json* const found = take(key);
  return {file_, path_of(key), found ? *found : kNothing};
}

std::vector<std::string> Section::known(const std::vector<std::string>& keys) {
  std::vector<std::string> there;
  for (const std::string& key : keys) {
    const nlohmann::json* const found = take(key);
    if (found && !found->empty()) there.push_back(path_of(key));
  }
  return there;
}

const std::vector<std::string>& Section::finish() const {
  for (const auto& [key, value] : object_->items()) {
    if (std::ranges::find(known_, key) != known_.end()) continue;
    WEFT_FAIL("{}: unknown key {}{}", file_, quote(path_of(key)), did_you_mean(key, known_));
  }
  return known_;
}

}  // namespace weft::io
