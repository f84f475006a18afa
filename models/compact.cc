#include "models/compact.h"

#include <cmath>

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
    auto& conv =
        stem.append<nn::Conv2d>(in, out, 3, nn::Conv2dOptions{.padding = 1, .bias = false});
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

nn::Segments CompactTransformer::segments() {
  nn::Segments all = encoder.layer_segments("encoder.");
  all.insert(all.begin(), {"embedding",
                           [this](const Tensor& images) { return encoder.embed(tokens(images)); },
                           {"class_token", "stem", "encoder.pos_embedding"}});
  all.push_back({"head",
                 [this](const Tensor& x) { return head(pool(encoder.ln(x))); },
                 {"encoder.ln", "attention_pool", "head"}});
  return all;
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

}  // namespace weft::models
