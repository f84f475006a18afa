#include "models/compact.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "models/option_taker.h"
#include "nn/init.h"
#include "nn/meta.h"

namespace weft::models {
namespace {

/// Side of the maps behind a max-pooling 3x3 of stride 2 and padding 1.
int64_t pooled(int64_t side) { return (side - 1) / 2 + 1; }

int64_t token_count(const CompactConfig& config) {
  int64_t count = 0;
  if (config.stages.empty()) {
    count = patch_count("CompactTransformer", config.image_size, config.patch);
  } else {
    int64_t side = config.image_size;
    for (size_t i = 0; i < config.stages.size(); ++i) side = pooled(side);
    count = side * side;
  }
  return count + (config.class_token ? 1 : 0);
}

std::unique_ptr<Classifier> make(CompactConfig config, OptionTaker& options) {
  take_encoder(options, config.encoder);
  options.take(&ModelOptions::class_token, config.class_token);
  if (config.stages.empty()) {
    options.take(&ModelOptions::patch, config.patch);
  } else {
    config.stages.back() = config.encoder.width;
  }
  return options.make<CompactTransformer>(config);
}

}  // namespace

CompactTransformer::CompactTransformer(const CompactConfig& config)
    : Classifier(config.image_size, config.channels, config.classes),
      config(config),
      class_token(
          config.class_token
              ? parameter("class_token", nn::init::zeros(nn::blank({1, 1, config.encoder.width})))
              : Tensor()),
      stem(add<nn::Sequential>("stem")),
      encoder(add<Encoder>("encoder", config.encoder, token_count(config))),
      attention_pool(config.class_token
                         ? nullptr
                         : &add<nn::Linear>("attention_pool", config.encoder.width, 1)),
      head(add<nn::Linear>("head", config.encoder.width, config.classes)) {
  const int64_t width = config.encoder.width;
  WEFT_CHECK(config.stages.empty() || config.stages.back() == width,
             "CompactTransformer: the last stage must have the width of the encoder, {}, got {}",
             width, config.stages.back());
  if (config.stages.empty()) {
    auto& conv = stem.append<nn::Conv2d>(config.channels, width, config.patch,
                                         nn::Conv2dOptions{.stride = config.patch});
    const double fan_in = config.channels * config.patch * config.patch;
    nn::init::trunc_normal(conv.weight, 0, std::sqrt(1 / fan_in));
    nn::init::zeros(conv.bias);
  }
  int64_t in = config.channels;
  for (int64_t out : config.stages) {
    auto& conv = stem.append<nn::Conv2d>(in, out, 3, nn::Conv2dOptions{.padding = 1}, false);
    nn::init::kaiming_normal(conv.weight);
    // The maximum and the ReLU commute; behind the pooling there is a quarter of the elements.
    stem.append<nn::MaxPool2d>(3, 2, 1);
    if (config.batch_norm) stem.append<nn::BatchNorm2d>(out);
    stem.append<nn::ReLU>();
    in = out;
  }
  nn::init::trunc_normal(head.weight, 0, 0.02);
  nn::init::zeros(head.bias);
  if (attention_pool) {
    nn::init::trunc_normal(attention_pool->weight, 0, 0.02);
    nn::init::zeros(attention_pool->bias);
  }
}

Tensor CompactTransformer::tokens(const Tensor& images) {
  check_images("CompactTransformer", images);
  const Tensor x = tokens_of(stem(images));
  return class_token.defined() ? prepend_token(class_token, x) : x;
}

Tensor CompactTransformer::forward(const Tensor& images) {
  return head(pool(encoder(tokens(images))));
}

nn::ModelStructure CompactTransformer::structure() {
  nn::ModelStructure structure = encoder.structure_between(
      {"embedding",
       [this](const Tensor& images) { return encoder.embed(tokens(images)); },
       {"class_token", "stem", "encoder.pos_embedding"}},
      {"head",
       [this](const Tensor& x) { return head(pool(encoder.ln(x))); },
       {"encoder.ln", "attention_pool", "head"}});
  if (config.class_token) {
    structure.positions.prefix = 1;
    structure.embeddings.push_back("class_token");
  }
  structure.head = &head;
  structure.replica = [config = config] { return std::make_unique<CompactTransformer>(config); };
  return structure;
}

Tensor CompactTransformer::pool(const Tensor& x) const {
  if (!attention_pool) return ops::select(x, 1, 0);
  const Tensor weights = ops::softmax((*attention_pool)(x), 1);           // [B, T, 1]
  return ops::squeeze(ops::matmul(ops::transpose(weights, 1, 2), x), 1);  // [B, W]
}

Matmuls CompactTransformer::forward_matmuls(int64_t images) const {
  const int64_t width = config.encoder.width;
  Matmuls all;
  if (config.stages.empty()) {
    all.push_back({.name = "stem.0",
                   .m = images * (encoder.tokens - (config.class_token ? 1 : 0)),
                   .n = width,
                   .k = config.channels * config.patch * config.patch});
  }
  int64_t in = config.channels, side = config.image_size;
  for (size_t i = 0; i < config.stages.size(); ++i) {
    all.push_back({.name = "stem." + std::to_string((config.batch_norm ? 4 : 3) * i),
                   .m = images * side * side,
                   .n = config.stages[i],
                   .k = in * 9});
    in = config.stages[i];
    side = pooled(side);
  }
  for (const Matmul& matmul : encoder.forward_matmuls(images)) all.push_back(matmul);
  if (attention_pool) {
    all.push_back({.name = "attention_pool", .m = images * encoder.tokens, .n = 1, .k = width});
    all.push_back({.name = "pool", .m = 1, .n = width, .k = encoder.tokens, .batch = images});
  }
  all.push_back({.name = "head", .m = images, .n = config.classes, .k = width});
  return all;
}

nlohmann::ordered_json CompactTransformer::architecture() const {
  nlohmann::ordered_json json = architecture_of(config.encoder);
  json["image_size"] = config.image_size;
  json["channels"] = config.channels;
  json["stages"] = config.stages;
  json["classes"] = config.classes;
  return json;
}

std::unique_ptr<Classifier> make_vit_lite(OptionTaker o) {
  return make({.encoder = {.layers = 6, .heads = 4, .width = 128, .hidden = 256}}, o);
}
std::unique_ptr<Classifier> make_cct(OptionTaker o) {
  return make(
      {.stages = {64, 128}, .encoder = {.layers = 2, .heads = 4, .width = 128, .hidden = 256}}, o);
}
std::unique_ptr<Classifier> make_cct_2_3x3(OptionTaker o) {
  return make({.stages = {64, 128, 192},
               .batch_norm = true,
               .encoder = {.layers = 2, .heads = 3, .width = 192, .hidden = 384}},
              o);
}
std::unique_ptr<Classifier> make_vit_lite_7_4(OptionTaker o) {
  return make(
      {.class_token = true, .encoder = {.layers = 7, .heads = 4, .width = 256, .hidden = 512}}, o);
}
std::unique_ptr<Classifier> make_cct_6_3x1(OptionTaker o) {
  return make({.stages = {256}, .encoder = {.layers = 6, .heads = 4, .width = 256, .hidden = 512}},
              o);
}
std::unique_ptr<Classifier> make_cct_7_3x1(OptionTaker o) {
  return make({.stages = {256}, .encoder = {.layers = 7, .heads = 4, .width = 256, .hidden = 512}},
              o);
}

}  // namespace weft::models
