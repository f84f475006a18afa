// What a training program sees of parallelism: one object, whatever is cut.
//
//   auto strategy = make_strategy({.name = "fsdp"}, world);
//   strategy->wrap(model, policy);
//   optim::AdamW optimizer(strategy->groups(model.named_parameters()), {...});
//   Tensor logits = strategy->forward(model, images);
//   backward(loss);  optimizer.step(...);  strategy->after_step();
//
// or, where a strategy has an order of its own for the parts of a step, as a pipeline has,
//
//   strategy->run(model, micro_batches);  optimizer.step(...);  strategy->after_step();
//
// Gradients are sums over the data ranks: the program weights each rank's loss with its share of
// the samples (or with 1 / ranks). States are whole, as on one rank, so that a checkpoint can be
// read by any number of ranks under any strategy. Every rank calls everything, in one order.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autograd/ops.h"
#include "dist/communicator.h"
#include "dist/exact_sum.h"
#include "dist/fsdp.h"
#include "dist/micro_batch.h"
#include "dist/pipeline.h"
#include "dist/tensor_parallel.h"
#include "nn/layers.h"
#include "nn/module.h"
#include "nn/segment.h"
#include "optim/optimizer.h"

namespace weft::dist {

struct StrategyOptions {
  std::string name = "single";  // strategy_names()
  int shard_size = 0;           // of hsdp; 0: the largest proper divisor of the number of ranks
  int tensor_parallel = 0;  // ranks that share a layer; 0: all with tp, 2 with fsdp+tp, 1 elsewhere
  bool sequence_parallel = false;  // of tp and fsdp+tp: tokens are dealt out between cut layers
  bool parallel_head = false;      // of tp and fsdp+tp: the head is cut by classes
  int pipeline_stages = 0;         // of pipeline; 0: all ranks
  Schedule schedule = Schedule::k1F1B;  // of pipeline
  int micro_batches = 0;                // of pipeline, per batch; 0: two per stage
  bool cpu_offload = false;             // of fsdp, zero3, hsdp, fsdp+tp: see FsdpOptions
};

/// single, dp, ddp, fsdp, zero1, zero2, zero3, hsdp, tp, fsdp+tp, pipeline
const std::vector<std::string>& strategy_names();
/// Of hsdp: the largest proper divisor.
int default_shard_size(int ranks);
/// Throws Error naming the setting and what was expected.
void validate_strategy(const StrategyOptions& options, int devices);
/// Processes that a strategy wants for so many devices: one for dp, whose devices are threads.
int processes_of(const StrategyOptions& options, int devices);
/// Devices that work on different samples; the others share layers or stages with them.
int data_devices_of(const StrategyOptions& options, int devices);

/// What a strategy has to know of a model, each for its own.
struct ModelStructure {
  ModelStructure(WrapPolicy units = {}) : units(std::move(units)) {}

  WrapPolicy units;  // what is gathered together: fsdp, zero, hsdp
  /// Pairs of linear layers, the second on the first's features: tp cuts them, and attention.
  std::vector<std::pair<nn::Linear*, nn::Linear*>> mlps;
  TokenRegion tokens;          // where tp may deal them out
  nn::Linear* head = nullptr;  // the last layer, on the classes: tp may cut it
  nn::Segments segments;       // pipeline
  std::function<std::unique_ptr<nn::Module>()> replica;  // another of the same architecture: dp
};

class Strategy {
 public:
  virtual ~Strategy() = default;

  /// Ranks that take different samples, this one's number among them, and the parts that a rank's
  /// batch is cut into.
  virtual int data_size() const { return 1; }
  virtual int data_rank() const { return 0; }
  virtual int pieces() const { return 1; }
  /// False on a rank whose loss is that of another one, or that has none.
  virtual bool counts() const { return true; }

  /// Takes the model over; its weights become rank 0's.
  virtual void wrap(nn::Module& module, const ModelStructure& structure) = 0;
  /// The groups for the optimizer of groups of the model's parameters.
  virtual optim::ParameterGroups groups(const optim::ParameterGroups& groups) { return groups; }
  virtual Tensor forward(nn::Module& module, const Tensor& x) { return module(x); }
  /// ops::cross_entropy of what forward() returned while the model trained: with a parallel head
  /// that is a part of the logits.
  virtual Tensor cross_entropy(const Tensor& logits, const Tensor& labels,
                               const ops::CrossEntropyOptions& options = {}) {
    return ops::cross_entropy(logits, labels, options);
  }
  /// i64 [N]: the class with the largest of such logits, without history.
  virtual Tensor predicted(const Tensor& logits);
  /// Forward and backward of a step's micro-batches.
  virtual void run(nn::Module& module, const MicroBatches& batches);
  /// While the result lives, gradients stay on their rank and add up.
  virtual std::shared_ptr<void> no_sync() { return nullptr; }
  /// The squares of these parameters' gradients, those of other ranks included, each once.
  virtual ExactSum squares(const Tensors& parameters) = 0;
  virtual double grad_norm(const Tensors& parameters);
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

/// `world` is null in a program of one rank, whose devices are then threads.
std::unique_ptr<Strategy> make_strategy(const StrategyOptions& options, CommunicatorPtr world,
                                        int devices = 1);

}  // namespace weft::dist
