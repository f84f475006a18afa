#include "models/registry.h"

#include <fmt/format.h>

#include <functional>

#include "models/compact.h"
#include "models/resnet.h"
#include "models/vit.h"

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

/// Moves options into a configuration; what nobody took the model does not have.
class Taker {
 public:
  Taker(std::string model, const ModelOptions& options)
      : model_(std::move(model)), options_(options) {}

  template <class T>
  void take(std::optional<T> ModelOptions::*option, T& into) {
    into = (options_.*option).value_or(into);
    (options_.*option).reset();
  }

  template <class Config>
  void take_image(Config& config) {
    take(&ModelOptions::image_size, config.image_size);
    take(&ModelOptions::channels, config.channels);
    take(&ModelOptions::classes, config.classes);
  }

  void take_encoder(EncoderConfig& config) {
    take(&ModelOptions::layers, config.layers);
    take(&ModelOptions::heads, config.heads);
    take(&ModelOptions::width, config.width);
    take(&ModelOptions::hidden, config.hidden);
    take(&ModelOptions::dropout, config.dropout);
    take(&ModelOptions::attention_dropout, config.attention_dropout);
    take(&ModelOptions::drop_path, config.drop_path);
    take(&ModelOptions::layer_norm_eps, config.layer_norm_eps);
    take(&ModelOptions::checkpoint_activations, config.checkpoint_activations);
  }

  void finish() const {
    for_each_option(options_, [&](const char* name, const auto& option) {
      WEFT_CHECK(!option, "model {} has no option \"{}\"", model_, name);
    });
  }

 private:
  std::string model_;
  ModelOptions options_;
};

std::unique_ptr<Classifier> make(VitConfig config, Taker options) {
  options.take_image(config);
  options.take_encoder(config.encoder);
  options.take(&ModelOptions::patch, config.patch);
  options.take(&ModelOptions::representation, config.representation);
  options.finish();
  return std::make_unique<VisionTransformer>(config);
}

std::unique_ptr<Classifier> make(CompactConfig config, Taker options) {
  options.take_image(config);
  options.take_encoder(config.encoder);
  options.take(&ModelOptions::class_token, config.class_token);
  if (config.stages.empty()) {
    options.take(&ModelOptions::patch, config.patch);
  } else {
    config.stages.back() = config.encoder.width;
  }
  options.finish();
  return std::make_unique<CompactTransformer>(config);
}

std::unique_ptr<Classifier> make(ResNetConfig config, Taker options) {
  options.take_image(config);
  options.finish();
  return std::make_unique<ResNet>(config);
}

struct Entry {
  std::string name;
  std::function<std::unique_ptr<Classifier>(Taker)> make;
};

template <class Config>
Entry entry(std::string name, Config config) {
  return {std::move(name), [config](Taker options) { return make(config, std::move(options)); }};
}

const std::vector<Entry>& entries() {
  static const std::vector<Entry> list = {
      entry("vit_b_16", VitConfig::b_16()),
      entry("vit_b_32", VitConfig::b_32()),
      entry("vit_l_16", VitConfig::l_16()),
      entry("vit_lite",
            CompactConfig{.encoder = {.layers = 6, .heads = 4, .width = 128, .hidden = 256}}),
      entry("cct",
            CompactConfig{.stages = {64, 128},
                          .encoder = {.layers = 2, .heads = 4, .width = 128, .hidden = 256}}),
      entry("cct_2_3x3",
            CompactConfig{.stages = {64, 128, 192},
                          .batch_norm = true,
                          .encoder = {.layers = 2, .heads = 3, .width = 192, .hidden = 384}}),
      entry("vit_lite_7_4",
            CompactConfig{.class_token = true,
                          .encoder = {.layers = 7, .heads = 4, .width = 256, .hidden = 512}}),
      entry("cct_6_3x1",
            CompactConfig{.stages = {256},
                          .encoder = {.layers = 6, .heads = 4, .width = 256, .hidden = 512}}),
      entry("cct_7_3x1",
            CompactConfig{.stages = {256},
                          .encoder = {.layers = 7, .heads = 4, .width = 256, .hidden = 512}}),
      entry("resnet8", ResNetConfig::resnet8()),
      entry("resnet50", ResNetConfig::resnet50()),
  };
  return list;
}

}  // namespace

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
  size_t known = 0;
  for_each_option(options, [&](const char* name, auto& option) {
    if (!json.contains(name)) return;
    ++known;
    try {
      option = json[name].get<typename std::decay_t<decltype(option)>::value_type>();
    } catch (const nlohmann::json::exception& e) {
      WEFT_FAIL("model options: \"{}\": {}", name, e.what());
    }
  });
  if (known == json.size()) return options;
  const nlohmann::json recognised = to_json(options);
  for (const auto& [name, value] : json.items()) {
    WEFT_CHECK(recognised.contains(name), "model options: unknown option \"{}\"", name);
  }
  return options;
}

std::unique_ptr<Classifier> make_model(const std::string& name, const ModelOptions& options) {
  for (const Entry& entry : entries()) {
    if (entry.name == name) return entry.make(Taker(name, options));
  }
  WEFT_FAIL("unknown model \"{}\"; known are {}", name, fmt::join(model_names(), ", "));
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Entry& entry : entries()) names.push_back(entry.name);
  return names;
}

}  // namespace weft::models
