#include "models/vit.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "autograd/checkpoint.h"
#include "models/option_taker.h"
#include "nn/init.h"
#include "nn/meta.h"

namespace weft::models {

MlpBlock::MlpBlock(int64_t width, int64_t hidden, double dropout)
    : fc1(add<nn::Linear>("0", width, hidden)),
      fc2(add<nn::Linear>("3", hidden, width)),
      dropout(dropout) {
  for (nn::Linear* layer : {&fc1, &fc2}) {
    nn::init::xavier_uniform(layer->weight);
    nn::init::normal(layer->bias, 0, 1e-6);
  }
}

Tensor MlpBlock::forward(const Tensor& x) {
  const bool drops = dropout > 0 && is_training();
  if (!drops && !fc1.has_stand_in() && !fc2.has_stand_in()) {
    return ops::mlp(x, fc1.weight, fc1.bias, fc2.weight, fc2.bias);
  }
  const Tensor h = ops::dropout(fc1.forward_gelu(x), dropout, is_training());  // [B, T, hidden]
  return ops::dropout(fc2(h), dropout, is_training());
}

void MlpBlock::adapt_state(const std::string& prefix, NamedTensors& state) const {
  for (auto& [name, tensor] : state) {
    for (const auto& [older, ours] : {std::pair("linear_1.", "0."), std::pair("linear_2.", "3.")}) {
      if (name.starts_with(prefix + older)) {
        name = prefix + ours + name.substr(prefix.size() + std::string_view(older).size());
      }
    }
  }
}

EncoderBlock::EncoderBlock(const EncoderConfig& config, double drop_path)
    : ln_1(add<nn::LayerNorm>("ln_1", config.width, config.layer_norm_eps)),
      self_attention(
          add<nn::MultiheadAttention>("self_attention", config.width, config.heads,
                                      nn::AttentionOptions{.dropout = config.attention_dropout})),
      ln_2(add<nn::LayerNorm>("ln_2", config.width, config.layer_norm_eps)),
      mlp(add<MlpBlock>("mlp", config.width, config.hidden, config.dropout)),
      dropout(add<nn::Dropout>("dropout", config.dropout)),
      drop_path(add<nn::DropPath>("drop_path", drop_path)) {}

EncoderBlock::Stream EncoderBlock::forward_stream(const Stream& in) {
  const auto [x, normalized] =
      in.branch.defined() ? ln_1.forward_add(in.branch, in.x) : std::pair(in.x, ln_1(in.x));
  const Tensor attended = drop_path(dropout(self_attention(normalized)));
  const auto [y, normalized_again] = ln_2.forward_add(attended, x);
  return {y, drop_path(mlp(normalized_again))};
}

Tensor EncoderBlock::forward(const Tensor& x) {
  const auto [stream, branch] = forward_stream({x, {}});
  return stream + branch;
}

Encoder::Encoder(const EncoderConfig& config, int64_t tokens)
    : config(config),
      tokens(tokens),
      pos_embedding(parameter("pos_embedding",
                              nn::init::normal(nn::blank({1, tokens, config.width}), 0, 0.02))),
      dropout(add<nn::Dropout>("dropout", config.dropout)),
      layers(add<nn::Sequential>("layers")),
      ln(add<nn::LayerNorm>("ln", config.width, config.layer_norm_eps)) {
  WEFT_CHECK(config.layers > 0, "Encoder: the number of layers must be positive, got {}",
             config.layers);
  for (int64_t i = 0; i < config.layers; ++i) {
    const double depth = config.layers > 1 ? static_cast<double>(i) / (config.layers - 1) : 0;
    blocks_.push_back(&layers.add<EncoderBlock>("encoder_layer_" + std::to_string(i), config,
                                                config.drop_path * depth));
  }
}

Tensor Encoder::embed(const Tensor& x) { return dropout(x + pos_embedding); }

Tensor Encoder::forward(const Tensor& input) {
  EncoderBlock::Stream stream = {embed(input), {}};
  for (EncoderBlock* block : blocks_) {
    if (config.checkpoint_activations) {
      stream.x = checkpoint([block](const Tensors& x) { return (*block)(x[0]); }, {stream.x});
    } else {
      stream = block->forward_stream(stream);
    }
  }
  return stream.branch.defined() ? ln.forward_add(stream.branch, stream.x).second : ln(stream.x);
}

nn::ModelStructure Encoder::structure_between(nn::Segment embedding, nn::Segment head) {
  nn::ModelStructure structure(nn::wrap_modules<EncoderBlock>());
  structure.segments.push_back(std::move(embedding));
  for (size_t i = 0; i < blocks_.size(); ++i) {
    EncoderBlock* const block = blocks_[i];
    const std::string name = "encoder.layers.encoder_layer_" + std::to_string(i);
    const auto forward = [this, block](const Tensor& x) {
      if (!this->config.checkpoint_activations) return (*block)(x);
      return checkpoint([block](const Tensors& in) { return (*block)(in[0]); }, {x});
    };
    structure.segments.push_back({name, forward, {name}});
    structure.mlps.emplace_back(&block->mlp.fc1, &block->mlp.fc2);
  }
  structure.segments.push_back(std::move(head));
  structure.layers = config.layers;
  structure.tokens = {.begin = &dropout, .end = this, .between = {&layers, &ln}, .count = tokens};
  structure.positions = {.name = "encoder.pos_embedding"};
  structure.embeddings = {structure.positions.name};
  return structure;
}

Matmuls Encoder::forward_matmuls(int64_t images) const {
  const int64_t w = config.width, h = config.hidden, depth = w / config.heads;
  const auto linear = [&](const char* name, int64_t out, int64_t in, Role role) {
    return Matmul{.name = name,
                  .m = images * tokens,
                  .n = out,
                  .k = in,
                  .count = config.layers,
                  .role = role};
  };
  const auto of_heads = [&](const char* name, int64_t columns, int64_t inner) {
    return Matmul{.name = name,
                  .m = tokens,
                  .n = columns,
                  .k = inner,
                  .batch = images * config.heads,
                  .count = config.layers,
                  .role = Role::kHeads};
  };
  return {linear("in_proj", 3 * w, w, Role::kColumns), of_heads("scores", tokens, depth),
          of_heads("mixture", depth, tokens),          linear("out_proj", w, w, Role::kRows),
          linear("mlp.0", h, w, Role::kColumns),       linear("mlp.3", w, h, Role::kRows)};
}

VisionTransformer::VisionTransformer(const VitConfig& config)
    : Classifier(config.image_size, config.channels, config.classes),
      config(config),
      class_token(
          parameter("class_token", nn::init::zeros(nn::blank({1, 1, config.encoder.width})))),
      conv_proj(add<nn::Conv2d>("conv_proj", config.channels, config.encoder.width, config.patch,
                                nn::Conv2dOptions{.stride = config.patch})),
      encoder(add<Encoder>("encoder", config.encoder,
                           1 + patch_count("VisionTransformer", config.image_size, config.patch))),
      heads(add<nn::Sequential>("heads")) {
  const double fan_in = config.channels * config.patch * config.patch;
  nn::init::trunc_normal(conv_proj.weight, 0, std::sqrt(1 / fan_in));
  nn::init::zeros(conv_proj.bias);

  int64_t width = config.encoder.width;
  if (config.representation > 0) {
    auto& pre_logits = heads.add<nn::Linear>("pre_logits", width, config.representation);
    nn::init::trunc_normal(pre_logits.weight, 0, std::sqrt(1.0 / width));
    nn::init::zeros(pre_logits.bias);
    heads.add<nn::Tanh>("act");
    width = config.representation;
  }
  head = &heads.add<nn::Linear>("head", width, config.classes);
  nn::init::zeros(head->weight);
  nn::init::zeros(head->bias);
}

Tensor VisionTransformer::tokens(const Tensor& images) {
  check_images("VisionTransformer", images);
  return prepend_token(class_token, tokens_of(conv_proj(images)));
}

Tensor VisionTransformer::forward(const Tensor& images) {
  return heads(ops::select(encoder(tokens(images)), 1, 0));  // [B, classes]
}

nn::ModelStructure VisionTransformer::structure() {
  nn::ModelStructure structure = encoder.structure_between(
      {"embedding",
       [this](const Tensor& images) { return encoder.embed(tokens(images)); },
       {"class_token", "conv_proj", "encoder.pos_embedding"}},
      {"head",
       [this](const Tensor& x) { return heads(ops::select(encoder.ln(x), 1, 0)); },
       {"encoder.ln", "heads"}});
  structure.positions.prefix = 1;
  structure.embeddings.push_back("class_token");
  structure.head = head;
  structure.replica = [config = config] { return std::make_unique<VisionTransformer>(config); };
  return structure;
}

Matmuls VisionTransformer::forward_matmuls(int64_t images) const {
  const int64_t width = config.encoder.width, r = config.representation;
  Matmuls all = encoder.forward_matmuls(images);
  all.insert(all.begin(), {.name = "conv_proj",
                           .m = images * (encoder.tokens - 1),
                           .n = width,
                           .k = config.channels * config.patch * config.patch});
  if (r > 0) all.push_back({.name = "pre_logits", .m = images, .n = r, .k = width});
  all.push_back({.name = "head", .m = images, .n = config.classes, .k = r > 0 ? r : width});
  return all;
}

nlohmann::ordered_json VisionTransformer::architecture() const {
  nlohmann::ordered_json json = architecture_of(config.encoder);
  json["image_size"] = config.image_size;
  json["channels"] = config.channels;
  json["patch"] = config.patch;
  json["classes"] = config.classes;
  return json;
}

void take_encoder(OptionTaker& options, EncoderConfig& config) {
  options.take(&ModelOptions::layers, config.layers);
  options.take(&ModelOptions::heads, config.heads);
  options.take(&ModelOptions::width, config.width);
  options.take(&ModelOptions::hidden, config.hidden);
  options.take(&ModelOptions::dropout, config.dropout);
  options.take(&ModelOptions::attention_dropout, config.attention_dropout);
  options.take(&ModelOptions::drop_path, config.drop_path);
  options.take(&ModelOptions::layer_norm_eps, config.layer_norm_eps);
  options.take(&ModelOptions::checkpoint_activations, config.checkpoint_activations);
}

nlohmann::ordered_json architecture_of(const EncoderConfig& config) {
  return {{"layers", config.layers},
          {"heads", config.heads},
          {"width", config.width},
          {"hidden", config.hidden}};
}

Tensor tokens_of(const Tensor& maps) { return ops::transpose(ops::flatten(maps, 2), 1, 2); }

Tensor prepend_token(const Tensor& token, const Tensor& x) {
  return ops::cat({ops::expand(token, {x.size(0), 1, x.size(2)}), x}, 1);
}

int64_t patch_count(std::string_view model, int64_t image_size, int64_t patch) {
  WEFT_CHECK(patch > 0 && image_size % patch == 0,
             "{}: patches of {} pixels do not tile images of {}", model, patch, image_size);
  return (image_size / patch) * (image_size / patch);
}

namespace {

std::unique_ptr<Classifier> make(VitConfig config, OptionTaker& options) {
  take_encoder(options, config.encoder);
  options.take(&ModelOptions::patch, config.patch);
  options.take(&ModelOptions::representation, config.representation);
  return options.make<VisionTransformer>(config);
}

}  // namespace

std::unique_ptr<Classifier> make_vit_b_16(OptionTaker o) { return make(VitConfig::b_16(), o); }
std::unique_ptr<Classifier> make_vit_b_32(OptionTaker o) { return make(VitConfig::b_32(), o); }
std::unique_ptr<Classifier> make_vit_l_16(OptionTaker o) { return make(VitConfig::l_16(), o); }

}  // namespace weft::models
