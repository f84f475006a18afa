// A training step as one rank among several, on random images: what the benches of sharding
// measure.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/memory_account.h"
#include "dist/cost.h"
#include "models/registry.h"
#include "optim/adam.h"

namespace weft::cli {

struct RankedStepOptions {
  std::string model = "vit_b_16", strategy = "ddp";
  int64_t batch = 1;  // of each rank
  models::ModelOptions options = {};
  int shard_size = 0;
};

/// What `weft train` makes units of.
dist::WrapPolicy unit_policy();
dist::ModelLayout layout_of_model(const RankedStepOptions& options);

/// Constructed and run by every rank alike. Its memory is counted in account().
class RankedStep {
 public:
  RankedStep(const RankedStepOptions& options, const dist::CommunicatorPtr& world);

  /// zero_grad, forward, loss, backward, AdamW. Calls entering("forward"), ("backward") and
  /// ("optimizer") where each begins.
  void run(const std::function<void(const char* phase)>& entering = {});

  MemoryAccount& account() { return account_; }
  dist::Strategy& strategy() { return *strategy_; }

 private:
  MemoryAccount account_;
  const MemoryAccount::Joined joined_{account_};
  std::unique_ptr<models::Classifier> model_;
  std::unique_ptr<dist::Strategy> strategy_;
  std::unique_ptr<optim::AdamW> optimizer_;
  Tensor images_, labels_;
  double weight_ = 1;
};

}  // namespace weft::cli
