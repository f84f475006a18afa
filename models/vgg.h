// VGG-11, with torchvision's parameter names and initialisers: 3x3 convolutions with poolings
// between them, and three linear layers that hold most of the weights. Simonyan, Zisserman: "Very
// Deep Convolutional Networks for Large-Scale Image Recognition", arXiv:1409.1556, column A.
#pragma once

#include "models/classifier.h"
#include "nn/layers.h"

namespace weft::models {

struct VggConfig {
  int64_t image_size = 224;  // 32 at least
  int64_t channels = 3;
  int64_t classes = 1000;
  /// Convolutions of each stage by their channels; a 2x2 max-pooling follows each stage.
  std::vector<std::vector<int64_t>> stages = {{64}, {128}, {256, 256}, {512, 512}, {512, 512}};
  int64_t hidden = 4096;  // of the classifier
  double dropout = 0.5;

  static VggConfig vgg11() { return {}; }
};

class Vgg : public Classifier {
 public:
  /// Throws Error for images that the poolings leave nothing of.
  explicit Vgg(const VggConfig& config);
  Tensor forward(const Tensor& images) override;
  /// A segment for each layer.
  nn::ModelStructure structure() override;
  Matmuls forward_matmuls(int64_t images) const override;
  nlohmann::ordered_json architecture() const override;

  VggConfig config;
  nn::Sequential& features;    // convolutions, ReLUs and poolings
  nn::Sequential& classifier;  // "0", "3" and "6" are linear

 private:
  std::vector<nn::Conv2d*> convolutions_;
  std::vector<nn::Linear*> linears_;
};

}  // namespace weft::models
