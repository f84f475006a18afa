// The vision transformer, with torchvision's parameter names, shapes and initialisers.
//
//   images -> conv_proj: one token per patch -> class token in front -> + position embedding
//   -> layers x { x += attention(ln_1(x)); x += mlp(ln_2(x)) } -> ln -> class token -> heads
//
// Dosovitskiy et al.: "An Image is Worth 16x16 Words", arXiv:2010.11929. Shapes below: B images,
// T tokens, W the width.
#pragma once

#include "models/classifier.h"
#include "nn/layers.h"

namespace weft::models {

class OptionTaker;

struct EncoderConfig {
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t width = 768;
  int64_t hidden = 3072;  // of the MLPs
  double dropout = 0;
  double attention_dropout = 0;
  double drop_path = 0;  // of the last layer; it grows linearly from 0 in the first, also where
                         // that is the only one
  double layer_norm_eps = 1e-6;
  bool checkpoint_activations = false;
};

/// fc2(gelu(fc1(x))) with dropout behind both; named "0" and "3" after their places in
/// torchvision's sequence. States with the older names "linear_1" and "linear_2" load too.
class MlpBlock : public nn::Module {
 public:
  MlpBlock(int64_t width, int64_t hidden, double dropout);
  Tensor forward(const Tensor& x) override;
  nn::Linear &fc1, &fc2;
  double dropout;

 protected:
  void adapt_state(const std::string& prefix, NamedTensors& state) const override;
};

class EncoderBlock : public nn::Module {
 public:
  EncoderBlock(const EncoderConfig& config, double drop_path);

  /// The residual stream and the branch that is still to be added to it: handing on both lets each
  /// addition happen inside the layer norm behind it.
  struct Stream {
    Tensor x;       // [B, T, W]
    Tensor branch;  // the same, or undefined
  };
  Stream forward_stream(const Stream& in);
  Tensor forward(const Tensor& x) override;

  nn::LayerNorm& ln_1;
  nn::MultiheadAttention& self_attention;
  nn::LayerNorm& ln_2;
  MlpBlock& mlp;
  nn::Dropout& dropout;
  nn::DropPath& drop_path;
};

/// Position embedding, layers, final norm: [B, T, W] to [B, T, W].
class Encoder : public nn::Module {
 public:
  Encoder(const EncoderConfig& config, int64_t tokens);
  Tensor forward(const Tensor& x) override;
  /// What stands in front of the layers: position embedding and dropout.
  Tensor embed(const Tensor& x);
  /// Of the model whose child "encoder" it is, in a chain of `embedding`, the layers and `head`.
  nn::ModelStructure structure_between(nn::Segment embedding, nn::Segment head);
  /// The matrix products of its layers.
  Matmuls forward_matmuls(int64_t images) const;

  EncoderConfig config;
  int64_t tokens;
  Tensor pos_embedding;  // [1, T, W]
  nn::Dropout& dropout;
  nn::Sequential& layers;
  nn::LayerNorm& ln;

 private:
  std::vector<EncoderBlock*> blocks_;
};

struct VitConfig {
  int64_t image_size = 224;
  int64_t channels = 3;
  int64_t patch = 16;
  int64_t classes = 1000;
  int64_t representation = 0;  // width of a tanh layer in front of the head; 0: none
  EncoderConfig encoder;

  static VitConfig b_16() { return {}; }
  static VitConfig b_32() { return {.patch = 32}; }
  static VitConfig l_16() {
    return {.encoder = {.layers = 24, .heads = 16, .width = 1024, .hidden = 4096}};
  }
};

class VisionTransformer : public Classifier {
 public:
  explicit VisionTransformer(const VitConfig& config);
  Tensor forward(const Tensor& images) override;
  nn::ModelStructure structure() override;
  Matmuls forward_matmuls(int64_t images) const override;
  nlohmann::ordered_json architecture() const override;

  VitConfig config;
  Tensor class_token;  // [1, 1, W]
  nn::Conv2d& conv_proj;
  Encoder& encoder;
  nn::Sequential& heads;
  nn::Linear* head;  // the last of them

 private:
  Tensor tokens(const Tensor& images);  // [B, T, W]
};

/// Takes what encoders have of options, and says what they have of an architecture.
void take_encoder(OptionTaker& options, EncoderConfig& config);
nlohmann::ordered_json architecture_of(const EncoderConfig& config);
/// Tokens [B, positions, W] of feature maps [B, W, rows, columns], row by row.
Tensor tokens_of(const Tensor& maps);
/// Tokens with a learned one [1, 1, W] in front.
Tensor prepend_token(const Tensor& token, const Tensor& x);
/// Patches per image; throws Error naming the model unless they tile it.
int64_t patch_count(std::string_view model, int64_t image_size, int64_t patch);

}  // namespace weft::models
