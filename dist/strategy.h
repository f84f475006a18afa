// What a training program sees of data parallelism: one object, whatever is sharded.
//
//   auto strategy = make_strategy({.name = "fsdp"}, world);
//   strategy->wrap(model, policy);
//   optim::AdamW optimizer(strategy->groups(model.named_parameters()), {...});
//   Tensor logits = strategy->forward(model, images);
//   backward(loss);  optimizer.step(...);  strategy->after_step();
//
// Gradients are sums over the ranks: the program weights each rank's loss with its share of the
// samples (or with 1 / ranks). States are whole, as on one rank, so that a checkpoint can be read
// by any number of ranks under any strategy. Every rank calls everything, in one order.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "dist/fsdp.h"
#include "nn/module.h"
#include "optim/optimizer.h"

namespace weft::dist {

struct StrategyOptions {
  std::string name = "single";  // strategy_names()
  int shard_size = 0;           // of hsdp; 0: the largest proper divisor of the number of ranks
};

/// single, ddp, fsdp, zero1, zero2, zero3, hsdp
const std::vector<std::string>& strategy_names();
/// Of hsdp: the largest proper divisor.
int default_shard_size(int ranks);
/// Throws Error naming the setting and what was expected.
void validate_strategy(const StrategyOptions& options, int devices);

class Strategy {
 public:
  virtual ~Strategy() = default;

  /// Takes the model over; its weights become rank 0's.
  virtual void wrap(nn::Module& module, const WrapPolicy& policy) = 0;
  /// The groups for the optimizer of groups of the model's parameters.
  virtual optim::ParameterGroups groups(const optim::ParameterGroups& groups) { return groups; }
  virtual Tensor forward(nn::Module& module, const Tensor& x) { return module(x); }
  /// While the result lives, gradients stay on their rank and add up.
  virtual std::shared_ptr<void> no_sync() { return nullptr; }
  /// Of all gradients, those of other ranks included.
  virtual double grad_norm(const Tensors& parameters) = 0;
  virtual void after_step() {}

  /// Whole states; on rank 0, elsewhere possibly empty.
  virtual NamedTensors model_state(nn::Module& module) { return module.state_dict(); }
  virtual optim::OptimizerState optimizer_state(const optim::Optimizer& optimizer) {
    return optimizer.state_dict();
  }
  virtual void load_model_state(nn::Module& module, const NamedTensors& state) {
    module.load_state_dict(state);
  }
  virtual void load_optimizer_state(optim::Optimizer& optimizer,
                                    const optim::OptimizerState& state) {
    optimizer.load_state_dict(state);
  }
  /// Elements of the buckets or units in which gradients travel, their padding included.
  virtual int64_t padded_elements() const { return 0; }
  /// "fsdp on 4 ranks: 4P/N parameters, ..." with the bytes of a model of P parameters under Adam.
  virtual std::string describe(int64_t parameters) const = 0;
};

/// `world` is null in a program of one rank.
std::unique_ptr<Strategy> make_strategy(const StrategyOptions& options, CommunicatorPtr world);

}  // namespace weft::dist
