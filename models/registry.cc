#include "models/registry.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/json_field.h"
#include "io/nearest.h"
#include "models/option_taker.h"

namespace weft::models {
namespace {

/// Calls visit(name, option) for every option; works on const and mutable options.
template <class Options, class Visit>
void for_each_option(Options& o, Visit&& visit) {
  visit("image_size", o.image_size);
  visit("channels", o.channels);
  visit("classes", o.classes);
  visit("patch", o.patch);
  visit("layers", o.layers);
  visit("heads", o.heads);
  visit("width", o.width);
  visit("hidden", o.hidden);
  visit("representation", o.representation);
  visit("class_token", o.class_token);
  visit("dropout", o.dropout);
  visit("attention_dropout", o.attention_dropout);
  visit("drop_path", o.drop_path);
  visit("layer_norm_eps", o.layer_norm_eps);
  visit("checkpoint_activations", o.checkpoint_activations);
}

struct Entry {
  const char* name;
  std::unique_ptr<Classifier> (*make)(OptionTaker options);
};

constexpr Entry kEntries[] = {
#define WEFT_MODEL(name) {#name, make_##name},
#include "models/models.inc"
#undef WEFT_MODEL
};

}  // namespace

Classifier::Classifier(int64_t image_size, int64_t channels, int64_t classes)
    : image_size_(image_size), channels_(channels), classes_(classes) {
  WEFT_CHECK(image_size > 0 && channels > 0 && classes > 0,
             "model: image size, channels and classes must be positive, got {}, {} and {}",
             image_size, channels, classes);
}

void Classifier::check_images(std::string_view model, const Tensor& images) const {
  WEFT_CHECK(images.defined() && images.dim() == 4 && images.size(1) == channels_ &&
                 images.size(2) == image_size_ && images.size(3) == image_size_,
             "{}: expected images [N, {}, {}, {}], got {}", model, channels_, image_size_,
             image_size_, images);
}

void OptionTaker::finish() const {
  for_each_option(options_, [&](const char* name, const auto& option) {
    WEFT_CHECK(!option, "model {} has no option \"{}\"", model_, name);
  });
}

nlohmann::json to_json(const ModelOptions& options) {
  nlohmann::json json = nlohmann::json::object();
  for_each_option(options, [&](const char* name, const auto& option) {
    if (option) json[name] = *option;
  });
  return json;
}

ModelOptions model_options_from_json(const nlohmann::json& json) {
  WEFT_CHECK(json.is_object(), "model options: expected a JSON object, got {}", json.type_name());
  ModelOptions options;
  std::vector<std::string> known;
  for_each_option(options, [&](const char* name, auto& option) {
    known.emplace_back(name);
    if (!json.contains(name)) return;
    try {
      option = io::field<typename std::decay_t<decltype(option)>::value_type>(json, name);
    } catch (const Error& error) {
      WEFT_FAIL("model options: {}", error.what());
    }
  });
  for (const auto& [name, value] : json.items()) {
    WEFT_CHECK(std::ranges::count(known, name) > 0, "model options: unknown option \"{}\"{}", name,
               io::did_you_mean(name, known));
  }
  return options;
}

std::unique_ptr<Classifier> make_model(const std::string& name, const ModelOptions& options) {
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry.make(OptionTaker(name, options));
  }
  const std::vector<std::string> known = model_names();
  WEFT_FAIL("unknown model \"{}\"; known are {}{}", name, fmt::join(known, ", "),
            io::did_you_mean(name, known));
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) names.emplace_back(entry.name);
  return names;
}

}  // namespace weft::models
