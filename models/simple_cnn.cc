#include "models/simple_cnn.h"

#include <nlohmann/json.hpp>

#include "models/conv_matmul.h"
#include "models/option_taker.h"

namespace weft::models {
namespace {

/// Elements of what the second pooling gives.
int64_t feature_count(const SimpleCnnConfig& config) {
  constexpr int64_t kSmallest = 16;
  WEFT_CHECK(config.image_size >= kSmallest, "SimpleCnn: images of {} pixels, expected {} at least",
             config.image_size, kSmallest);
  const int64_t side = ((config.image_size - 4) / 2 - 4) / 2;
  return 16 * side * side;
}

Tensor pooled(const Tensor& x) { return ops::max_pool2d(ops::relu(x)); }

}  // namespace

SimpleCnn::SimpleCnn(const SimpleCnnConfig& config)
    : Classifier(config.image_size, config.channels, config.classes),
      config(config),
      conv1(add<nn::Conv2d>("conv1", config.channels, 6, 5)),
      conv2(add<nn::Conv2d>("conv2", 6, 16, 5)),
      fc1(add<nn::Linear>("fc1", feature_count(config), 120)),
      fc2(add<nn::Linear>("fc2", 120, 84)),
      fc3(add<nn::Linear>("fc3", 84, config.classes)) {}

Tensor SimpleCnn::features(const Tensor& images) {
  check_images("SimpleCnn", images);
  return ops::flatten(pooled(conv2(pooled(conv1(images)))), 1);
}

Tensor SimpleCnn::forward(const Tensor& images) {
  return fc3(ops::relu(fc2(ops::relu(fc1(features(images))))));
}

nn::ModelStructure SimpleCnn::structure() {
  nn::ModelStructure structure(nn::wrap_modules<nn::Conv2d, nn::Linear>());
  structure.segments = {
      {"features", [this](const Tensor& x) { return features(x); }, {"conv1", "conv2"}},
      {"fc1", [this](const Tensor& x) { return ops::relu(fc1(x)); }, {"fc1"}},
      {"fc2", [this](const Tensor& x) { return ops::relu(fc2(x)); }, {"fc2"}},
      {"fc3", [this](const Tensor& x) { return fc3(x); }, {"fc3"}}};
  structure.mlps = {{&fc1, &fc2}};
  structure.head = &fc3;
  structure.replica = [config = config] { return std::make_unique<SimpleCnn>(config); };
  return structure;
}

Matmuls SimpleCnn::forward_matmuls(int64_t images) const {
  int64_t side = config.image_size;
  Matmuls all = {conv_matmul(conv1, side)};
  side /= 2;
  all.push_back(conv_matmul(conv2, side));
  const auto linear = [&](const char* name, const nn::Linear& layer, Role role) {
    const Shape& weight = layer.weight.shape();
    all.push_back({.name = name, .m = 1, .n = weight[0], .k = weight[1], .role = role});
  };
  linear("fc1", fc1, Role::kColumns);
  linear("fc2", fc2, Role::kRows);
  linear("fc3", fc3, Role::kWhole);
  for (Matmul& matmul : all) matmul.m *= images;
  return all;
}

nlohmann::ordered_json SimpleCnn::architecture() const {
  return {{"image_size", config.image_size},
          {"channels", config.channels},
          {"classes", config.classes}};
}

std::unique_ptr<Classifier> make_simple_cnn(OptionTaker o) {
  return o.make<SimpleCnn>(SimpleCnnConfig());
}

}  // namespace weft::models
