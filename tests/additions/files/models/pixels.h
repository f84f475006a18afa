// A linear classifier of pixels.
#pragma once

#include "models/classifier.h"
#include "nn/layers.h"

namespace weft::models {

struct PixelsConfig {
  int64_t image_size = 32, channels = 3, classes = 10;
};

class Pixels : public Classifier {
 public:
  explicit Pixels(const PixelsConfig& config);
  Tensor forward(const Tensor& images) override;
  nn::ModelStructure structure() override;
  Matmuls forward_matmuls(int64_t images) const override;
  nlohmann::ordered_json architecture() const override;

  PixelsConfig config;
  nn::Linear& head;
};

}  // namespace weft::models
