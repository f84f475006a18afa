// A training step of a model on one resident batch: what bench, profile and compare measure.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "models/registry.h"
#include "optim/adam.h"

namespace weft::cli {

struct StepOptions {
  std::string model = "cct", precision = "fp32";  // fp32 or bf16
  int64_t batch = 64;
  models::ModelOptions options = {};
  Device device = {};
};

/// Weights, images and moments are random, the same at every construction. Labels are 0, 1, 2, ...
class TrainingStep {
 public:
  explicit TrainingStep(const StepOptions& options);

  /// zero_grad, forward, loss, backward and AdamW. Calls entering("forward"), ("backward") and
  /// ("update") where each begins.
  void run(const std::function<void(const char* phase)>& entering = {});
  /// Logits alone, nothing recorded.
  Tensor infer();

  models::Classifier& model() { return *model_; }
  const models::Classifier& model() const { return *model_; }

 private:
  DType precision_;
  std::unique_ptr<models::Classifier> model_;
  Tensor images_, labels_;
  std::unique_ptr<optim::AdamW> optimizer_;
};

}  // namespace weft::cli
