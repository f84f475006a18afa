// What all image classifiers share: their input, their classes, and the matrix products they do.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "nn/module.h"
#include "nn/structure.h"

namespace weft::models {

/// How ranks that share a layer divide a product (tensor parallelism).
enum class Role : uint8_t {
  kWhole,    // each does all of it
  kColumns,  // n: the first layer of a pair, and what makes attention's heads
  kRows,     // k: the second layer of a pair
  kHeads,    // batch: attention's own, one for each image and head
};

/// `count` batched products [batch, m, k] x [batch, k, n] of equal shape.
struct Matmul {
  std::string name;
  int64_t m, n, k;
  int64_t batch = 1;
  int64_t count = 1;
  Role role = Role::kWhole;

  /// 2 m n k for each: a multiplication and an addition.
  double flops() const { return 2.0 * m * n * k * batch * count; }
};

using Matmuls = std::vector<Matmul>;

class Classifier : public nn::Module {
 public:
  /// Logits [N, classes] of images [N, channels, image_size, image_size].
  Tensor forward(const Tensor& images) override = 0;
  /// The matrix products of a forward pass over `images` images; convolutions as the products that
  /// im2col makes of them.
  virtual Matmuls forward_matmuls(int64_t images) const = 0;
  nn::ModelStructure structure() override = 0;
  nn::BatchRow batch_row() const override {
    return {.shape = {channels_, image_size_, image_size_}, .classes = classes_};
  }
  /// What another program needs to build the same model: image_size, channels, classes, ...
  virtual nlohmann::ordered_json architecture() const = 0;
  /// Of one image.
  double forward_matmul_flops() const {
    double total = 0;
    for (const Matmul& matmul : forward_matmuls(1)) total += matmul.flops();
    return total;
  }

  int64_t image_size() const { return image_size_; }
  int64_t channels() const { return channels_; }
  int64_t classes() const { return classes_; }

 protected:
  Classifier(int64_t image_size, int64_t channels, int64_t classes);
  /// Throws Error naming the model unless images have the shape that forward expects.
  void check_images(std::string_view model, const Tensor& images) const;

 private:
  int64_t image_size_, channels_, classes_;
};

}  // namespace weft::models
