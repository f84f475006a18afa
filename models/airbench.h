// A small convolutional network that learns CIFAR-10 quickly: six 3x3 convolutions in three groups,
// behind a first layer that whitens 2x2 patches of the training images.
//
//   whiten (2x2, fixed) -> gelu -> groups x { conv1 -> pool 2 -> norm1 -> gelu -> conv2 -> norm2
//   -> gelu } -> max over what is left -> head / 9
//
// Jordan: "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", arXiv:2404.00498, section 3, after
// Page: "How to Train Your ResNet", 2018. Batch norms have biases and no scale. The convolutions
// begin as identities of their first channels ("dirac").
#pragma once

#include "models/classifier.h"
#include "nn/layers.h"

namespace weft::models {

struct AirbenchConfig {
  int64_t image_size = 32;  // 9 at least: a point is left behind three poolings
  int64_t channels = 3;
  int64_t classes = 10;
  std::vector<int64_t> widths = {64, 256, 256};  // of the groups
};

class ConvGroup : public nn::Module {
 public:
  ConvGroup(int64_t in, int64_t out);
  /// [N, in, H, W] to [N, out, H / 2, W / 2].
  Tensor forward(const Tensor& x) override;

  nn::Conv2d& conv1;
  nn::BatchNorm2d& norm1;
  nn::Conv2d& conv2;
  nn::BatchNorm2d& norm2;
};

class Airbench : public Classifier {
 public:
  /// Throws Error for images that the poolings leave nothing of.
  explicit Airbench(const AirbenchConfig& config);
  Tensor forward(const Tensor& images) override;
  /// The filters of "whiten", which are not trained, become the eigenvectors of the covariance of
  /// the images' 2x2 patches, each divided by the root of its eigenvalue, and their negatives.
  void adapt_to(const Tensor& images);
  nn::ModelStructure structure() override;
  Matmuls forward_matmuls(int64_t images) const override;
  nlohmann::ordered_json architecture() const override;

  AirbenchConfig config;
  nn::Conv2d& whiten;
  std::vector<ConvGroup*> groups;  // "group1", ...
  nn::Linear& head;

 private:
  std::vector<ConvGroup*> add_groups();
  Tensor stem(const Tensor& images);
  Tensor logits(const Tensor& x);
};

}  // namespace weft::models
