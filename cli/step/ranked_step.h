// A training step as one rank among several, on images or text made up here, as Fabric leads it:
// what the benches of sharding measure, and what weft estimate and weft plan rehearse.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/memory_account.h"
#include "dist/strategy/strategy_kind.h"
#include "io/command_line.h"
#include "models/registry.h"
#include "optim/registry.h"
#include "train/fabric.h"

namespace weft::cli {

struct RankedStepOptions {
  std::string model = "vit_b_16";  // of step_model_names()
  dist::StrategyOptions strategy = {.name = "ddp"};
  int64_t batch = 1;  // images, or windows of text, per device
  /// Whether devices that share a layer or a pipeline count as one, as weft train counts them; else
  /// each has so many, and a step of theirs as much to compute as one of data parallelism.
  bool is_batch_shared = false;
  models::ModelOptions options = {};
  std::string optimizer = "adamw";
  std::string precision = "fp32";  // of train/precision.h
  std::string fp8_level = {};      // of fp8 (train/fp8_level.h)
  int devices = 1;                 // of dp; the other strategies have as many as ranks
  int deterministic = 0;           // micro-batches of a deterministic reduction; 0: none
  int batches_ahead = 0;           // of images, that a loader has ready while a step takes its own
};

/// What a model takes and what it is to answer: f32 images [N, C, H, W] and classes i64 [N], or
/// tokens i64 [N, T] and those that follow.
struct Rows {
  Tensor inputs, targets;
};

/// The classifiers, and the language models.
std::vector<std::string> step_model_names();
/// Throws Error naming an unknown model, and an option that it does not have.
std::unique_ptr<nn::Module> make_step_model(const RankedStepOptions& options);

/// Adds the options of strategies that `usual` has, with what it says of their defaults, as a
/// group.
void add_strategy_settings(io::Command& command, dist::StrategyOptions& settings,
                           const std::map<dist::Settings, std::string>& usual);

/// The layout of the model's parameters on each rank.
std::vector<dist::ModelLayout> layouts_of_model(const RankedStepOptions& options, int devices);
/// The same on one rank alone.
dist::ModelLayout layout_of_model(const RankedStepOptions& options);
/// Images that those who share a layer, a pipeline or a process take together in a step.
int64_t images_of(const RankedStepOptions& options, const dist::Sharing& sharing);
/// The strategy's options with as many micro-batches as such a step's images fill, and the
/// precision's part in them.
dist::StrategyOptions filled(const RankedStepOptions& options, int devices);

/// Constructed and run by every rank alike. Its memory is counted in account().
class RankedStep {
 public:
  /// `world` is null with dp.
  RankedStep(const RankedStepOptions& options, const dist::CommunicatorPtr& world);

  /// zero_grad, forward, loss, backward, optimizer. Calls entering("forward"), ("backward") and
  /// ("optimizer") where each begins, in a pipeline with every micro-batch.
  void run(const std::function<void(const char* phase)>& entering = {});

  MemoryAccount& account() { return account_; }
  dist::Strategy& strategy() { return fabric_.strategy(); }

 private:
  MemoryAccount account_;
  const MemoryAccount::Joined joined_{account_};
  const train::Precision& precision_;
  train::Fabric fabric_;
  std::unique_ptr<nn::Module> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::vector<Tensor> inputs_, targets_;  // of each micro-batch
  std::vector<Rows> ahead_;
  int64_t count_ = 0;  // rows of them
  bool is_deterministic_ = false;
};

}  // namespace weft::cli
