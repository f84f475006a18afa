// Compact transformers for small images: ViT-Lite and the compact convolutional transformer.
//
//   vit_lite  images -> conv_proj: one token per patch -> encoder -> pooled token -> head
//   cct       images -> stages of { convolution 3x3, max-pooling 3x3 of stride 2, batch norm where
//             asked for, ReLU } -> the same
//
// The encoder is that of models/vit.h. Pooling takes the class token, or, sequence pooling, the
// mean of all tokens weighted by softmax(linear(token)). Hassani et al.: "Escaping the Big Data
// Paradigm with Compact Transformers", arXiv:2104.05704.
#pragma once

#include "models/vit.h"

namespace weft::models {

struct CompactConfig {
  int64_t image_size = 32;
  int64_t channels = 3;
  int64_t classes = 10;
  int64_t patch = 4;            // of a stem without convolution stages
  std::vector<int64_t> stages;  // channels of each convolution stage, the last one the width
  bool batch_norm = false;      // in each convolution stage
  bool class_token = false;     // false: sequence pooling
  EncoderConfig encoder = {.layers = 2, .heads = 4, .width = 128, .hidden = 256};
};

class CompactTransformer : public Classifier {
 public:
  explicit CompactTransformer(const CompactConfig& config);
  Tensor forward(const Tensor& images) override;
  nn::ModelStructure structure() override;
  Matmuls forward_matmuls(int64_t images) const override;
  nlohmann::ordered_json architecture() const override;

  CompactConfig config;
  Tensor class_token;    // [1, 1, W], or undefined
  nn::Sequential& stem;  // images to maps [B, W, rows, columns]
  Encoder& encoder;
  nn::Linear* attention_pool;  // [W] to a score, or null
  nn::Linear& head;

 private:
  Tensor tokens(const Tensor& images);  // [B, T, W]
  Tensor pool(const Tensor& x) const;
};

}  // namespace weft::models
