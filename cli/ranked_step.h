// A training step as one rank among several, on random images: what the benches of sharding
// measure.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/memory_account.h"
#include "dist/cost.h"
#include "models/registry.h"
#include "optim/adam.h"

namespace weft::cli {

struct RankedStepOptions {
  std::string model = "vit_b_16";
  dist::StrategyOptions strategy = {.name = "ddp"};
  int64_t batch = 1;  // of each device
  models::ModelOptions options = {};
  int devices = 1;        // of dp; with the others as many as ranks
  int deterministic = 0;  // pieces of a batch of all ranks, added in one fixed tree; 0: not fixed
};

/// What each rank has of the model.
std::vector<dist::ModelLayout> layouts_of_model(const RankedStepOptions& options, int devices);
/// Of one rank alone.
dist::ModelLayout layout_of_model(const RankedStepOptions& options);
/// Images that the devices of one data rank take together in a step.
int64_t images_of(const RankedStepOptions& options, const dist::Sharing& sharing);
/// The options with a number of micro-batches that such a step's images fill.
dist::StrategyOptions filled(const RankedStepOptions& options, int devices);

/// Constructed and run by every rank alike. Its memory is counted in account().
class RankedStep {
 public:
  /// `world` is null with dp.
  RankedStep(const RankedStepOptions& options, const dist::CommunicatorPtr& world);

  /// zero_grad, forward, loss, backward, AdamW. Calls entering("forward"), ("backward") and
  /// ("optimizer") where each begins, in a pipeline with every micro-batch.
  void run(const std::function<void(const char* phase)>& entering = {});

  MemoryAccount& account() { return account_; }
  dist::Strategy& strategy() { return *strategy_; }

 private:
  MemoryAccount account_;
  const MemoryAccount::Joined joined_{account_};
  std::unique_ptr<models::Classifier> model_;
  std::unique_ptr<dist::Strategy> strategy_;
  std::unique_ptr<optim::AdamW> optimizer_;
  std::vector<Tensor> images_, labels_;  // of each micro-batch
  int64_t count_ = 0;                    // images
  bool is_deterministic_ = false;
};

}  // namespace weft::cli
