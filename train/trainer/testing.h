// What the tests of this folder train.
#pragma once

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "core/philox.h"
#include "data/tensors/tensor_dataset.h"
#include "io/files.h"
#include "nn/loss.h"
#include "nn/nn.h"
#include "optim/sgd.h"
#include "train/trainer/trainer.h"

namespace weft::train::testing {

/// An empty directory's name.
inline std::string scratch(const std::string& name) {
  const char* const directory = std::getenv("TEST_TMPDIR");
  const io::Path path = io::Path(directory ? directory : "/tmp") / name;
  io::remove_tree(path);
  return path.string();
}

inline Tensor normal(const Shape& shape, uint64_t stream, DType dtype = DType::f32) {
  Philox random(11, stream);
  std::vector<double> values(numel(shape));
  for (double& v : values) v = random.normal();
  return ops::cast(Tensor::from(values, shape), dtype);
}

/// y = x (1, -2, 0.5) + 0.25, without noise.
inline data::TensorDatasetPtr line(int64_t rows, uint64_t stream = 0, DType dtype = DType::f32) {
  const Tensor x = normal({rows, 3}, stream, dtype);
  const Tensor w = ops::cast(Tensor::from(std::vector<double>{1, -2, 0.5}, {3, 1}), dtype);
  return data::tensor_dataset({x, ops::matmul(x, w) + 0.25});
}

struct Regression : TrainingModule {
  Regression() : linear(add<nn::Linear>("linear", 3, 1)) {}
  Tensor forward(const Tensor& x) override { return linear(x); }
  nn::ModelStructure structure() override {
    return nn::ModelStructure(nn::wrap_modules<nn::Linear>());
  }
  Tensor training_step(const Batch& batch, int64_t) override {
    const Tensor loss = nn::mse_loss((*this)(batch[0]), batch[1]);
    log("train_loss", loss, {.on_step = true});
    return loss;
  }
  void validation_step(const Batch& batch, int64_t) override {
    log("val_loss", nn::mse_loss((*this)(batch[0]), batch[1]));
  }
  Optimization configure_optimizers() override {
    return std::make_unique<optim::SGD>(named_parameters(), optim::SgdOptions{.lr = 0.1});
  }
  nn::Linear& linear;
};

/// All weights, one after another.
inline std::vector<double> weights_of(Trainer& trainer, nn::Module& module) {
  std::vector<double> all;
  for (const auto& [name, tensor] : trainer.fabric().strategy().model_state(module)) {
    for (double v : tensor.to_vector()) all.push_back(v);
  }
  return all;
}

/// Options of a test: nothing is shown.
inline TrainerOptions quiet(TrainerOptions options) {
  options.enable_progress_bar = options.enable_table = false;
  options.handle_signals = false;
  return options;
}

}  // namespace weft::train::testing
