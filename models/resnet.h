// Residual networks, with torchvision's parameter names and initialisers.
//
// resnet50 is torchvision's (bottlenecks of 1x1, 3x3, 1x1 with the stride in the 3x3: "v1.5");
// resnet8 is the small one for 32x32 images: a 3x3 convolution of 16 channels and three stages of
// one basic block with 16, 32 and 64. He et al.: "Deep Residual Learning", arXiv:1512.03385.
#pragma once

#include "models/classifier.h"
#include "nn/layers.h"

namespace weft::models {

struct ResNetConfig {
  int64_t image_size = 224;
  int64_t channels = 3;
  int64_t classes = 1000;
  bool bottleneck = true;  // false: basic blocks of two 3x3 convolutions
  bool large_stem = true;  // 7x7 of stride 2 and a max-pooling; false: 3x3
  std::vector<int64_t> blocks = {3, 4, 6, 3};
  std::vector<int64_t> widths = {64, 128, 256, 512};

  static ResNetConfig resnet50() { return {}; }
  static ResNetConfig resnet8() {
    return {.image_size = 32,
            .classes = 10,
            .bottleneck = false,
            .large_stem = false,
            .blocks = {1, 1, 1},
            .widths = {16, 32, 64}};
  }
};

/// relu(x + f(x)) with f the convolutions "conv1", "conv2"(, "conv3"), each with its batch norm,
/// and x passed through "downsample" where the shape changes.
class ResidualBlock : public nn::Module {
 public:
  ResidualBlock(int64_t in, int64_t width, int64_t stride, bool bottleneck);
  Tensor forward(const Tensor& x) override;
  /// Of one image whose maps have the given side, which becomes that of the result.
  Matmuls forward_matmuls(int64_t& side) const;

 private:
  std::vector<std::pair<nn::Conv2d*, nn::BatchNorm2d*>> layers_;
  nn::Sequential* downsample_ = nullptr;
  nn::Conv2d* shortcut_ = nullptr;  // its convolution
};

class ResNet : public Classifier {
 public:
  explicit ResNet(const ResNetConfig& config);
  Tensor forward(const Tensor& images) override;
  nn::ModelStructure structure() override;
  Matmuls forward_matmuls(int64_t images) const override;
  nlohmann::ordered_json architecture() const override;

  ResNetConfig config;
  nn::Conv2d& conv1;
  nn::BatchNorm2d& bn1;
  std::vector<ResidualBlock*> blocks;  // "layer1.0", "layer1.1", ...
  nn::Linear* fc;

 private:
  Tensor stem(const Tensor& images);
  Tensor head(const Tensor& x) { return (*fc)(ops::mean(x, {2, 3})); }
};

}  // namespace weft::models
