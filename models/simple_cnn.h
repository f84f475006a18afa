// The convolutional network of PyTorch's tutorial "Training a Classifier", with its names: LeNet-5
// for colour images, with ReLUs and max-poolings.
//
//   conv1 (5x5, 6) -> relu -> pool -> conv2 (5x5, 16) -> relu -> pool -> fc1 -> relu -> fc2 -> relu
//   -> fc3
//
// LeCun et al.: "Gradient-Based Learning Applied to Document Recognition", Proc. IEEE, 1998.
#pragma once

#include "models/classifier.h"
#include "nn/layers.h"

namespace weft::models {

struct SimpleCnnConfig {
  int64_t image_size = 32;  // 16 at least
  int64_t channels = 3;
  int64_t classes = 10;
};

class SimpleCnn : public Classifier {
 public:
  /// PyTorch's default initialisers. Throws Error for images that the layers leave nothing of.
  explicit SimpleCnn(const SimpleCnnConfig& config);
  Tensor forward(const Tensor& images) override;
  nn::ModelStructure structure() override;
  Matmuls forward_matmuls(int64_t images) const override;
  nlohmann::ordered_json architecture() const override;

  SimpleCnnConfig config;
  nn::Conv2d &conv1, &conv2;
  nn::Linear &fc1, &fc2, &fc3;

 private:
  Tensor features(const Tensor& images);
};

}  // namespace weft::models
