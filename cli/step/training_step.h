// A training step of a model on one resident batch: what bench, profile and compare measure.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/graph.h"
#include "io/command_line.h"
#include "kernels/gemm/packed_weights.h"
#include "models/registry.h"
#include "optim/grad_scaler.h"
#include "optim/registry.h"
#include "train/precision.h"

namespace weft::cli {

struct StepOptions {
  std::string model = "cct";
  std::string precision = "fp32", matmul_numerics = "ieee";  // as train::Config has them
  int64_t batch = 64;
  models::ModelOptions options = {};
  std::string optimizer = "adamw";
  Device device = {};
};

/// Adds --image-size, --classes and --checkpoint-activations to a command.
void add_model_size_options(io::Command& command, models::ModelOptions& options);

/// i64 [rows], on the CPU: 0, 1, 2, ... and again from 0 behind the last class.
Tensor cyclic_labels(int64_t rows, int64_t classes);

/// Weights, images and moments are random, the same at every construction. Labels are 0, 1, 2, ...
class TrainingStep {
 public:
  /// Throws Error for an unknown precision, or one that the numerics' GPU lacks.
  explicit TrainingStep(const StepOptions& options);

  /// zero_grad, forward, loss, backward and optimizer; in fp16 with a scaled loss. Calls
  /// entering("forward"), ("backward") and ("update") where each begins.
  void run(const std::function<void(const char* phase)>& entering = {});
  /// Captures the step in a CUDA graph, after as many that are not as it takes for the optimizer to
  /// make one: run() then launches that, and calls nothing. Throws Error on the CPU, and in fp8,
  /// whose scales wait for the device.
  void capture();
  /// Logits alone, nothing recorded. The weights are cast and packed once for all calls until
  /// run().
  Tensor infer();

  models::Classifier& model() { return *model_; }
  const models::Classifier& model() const { return *model_; }

 private:
  const train::Precision& precision_;
  kernels::Accumulation accumulation_;
  optim::GradScaler scaler_;
  Fp8Scaling fp8_;
  std::unique_ptr<models::Classifier> model_;
  Tensor images_, labels_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<DeviceGraph> graph_;
  bool has_stepped_ = false;  // the optimizer, at least once
  std::optional<train::PrecisionScope> inference_;
  std::optional<kernels::PackedWeights> packed_;
};

}  // namespace weft::cli
