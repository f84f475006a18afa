// What a training program sees of parallelism: one object, whatever is cut.
//
//   auto strategy = make_strategy({.name = "fsdp"}, world);
//   strategy->wrap(model, policy);
//   optim::AdamW optimizer(strategy->groups(model.named_parameters()), {...});
//   strategy->run(model, micro_batches);          // or, where no order of their own is needed,
//   backward(loss(strategy->forward(model, images)));
//   strategy->keep_changes();  optimizer.step(...);  strategy->after_step();
//
// Gradients are sums over the data ranks: the program weights each rank's loss with its share of
// the samples. States are whole, or come as this rank's tensors with their places in the whole; so
// a checkpoint can be read by any number of ranks under any strategy. Every rank calls everything,
// in one order, and freezes the same parameters, when it likes. A backward pass, or a run(), that
// fails on every rank at the same place may be caught: the program drops the gradients, and the
// next is as any. Where it has failed on some ranks alone, the next throws Error, or waiting does.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "autograd/ops.h"
#include "dist/comm/communicator.h"
#include "dist/comm/exact_sum.h"
#include "dist/model_parallel/micro_batch.h"
#include "dist/strategy/local_state.h"
#include "dist/strategy/options.h"
#include "nn/module.h"
#include "nn/structure.h"
#include "optim/optimizer.h"

namespace weft::dist {

using nn::ModelStructure;  // what a strategy has to know of a model, each for its own

class Strategy {
 public:
  virtual ~Strategy() = default;

  /// Ranks that take different samples, this one's number among them, and the micro-batches that a
  /// rank's batch is cut into.
  virtual int data_size() const { return 1; }
  virtual int data_rank() const { return 0; }
  virtual int micro_batches() const { return 1; }
  /// False on a rank whose loss is that of another one, or that has none.
  virtual bool counts() const { return true; }

  /// Takes the model over; its weights become rank 0's.
  virtual void wrap(nn::Module& module, const ModelStructure& structure) = 0;
  /// The groups for the optimizer of groups of the model's parameters.
  virtual optim::ParameterGroups groups(const optim::ParameterGroups& groups) { return groups; }
  /// Whether there are parts of parameters in these. Known before wrap().
  virtual bool cuts_parameters() const { return false; }
  virtual Tensor forward(nn::Module& module, const Tensor& x) {
    return call(module, [&] { return Tensors{module.unrouted(x)}; })[0];
  }
  /// What function() returns, which calls the model in another way. Throws Error where that cannot
  /// be shared out.
  virtual Tensors call(nn::Module& module, const std::function<Tensors()>& function) = 0;
  virtual bool calls_functions() const { return true; }
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
  /// Before a model is measured: rank 0's buffers, running statistics say, become all ranks', as
  /// before a forward in training. So every rank measures what model_state() has.
  virtual void share_buffers(nn::Module&) {}
  /// While the result lives, gradients stay on their rank and add up.
  virtual std::shared_ptr<void> no_sync() { return nullptr; }
  /// Drops, or multiplies, those of these parameters of the model that have added up so and that
  /// lie elsewhere than in the .grad() of what the optimizer has.
  virtual void drop_local_gradients(const Tensors&) {}
  virtual void scale_local_gradients(const Tensors&, double /*factor*/) {}
  /// The squares of these parameters' gradients, those of other ranks included, each once; by
  /// default of the gradients that this rank has.
  virtual ExactSum squares(const Tensors& parameters);
  virtual double grad_norm(const Tensors& parameters);
  /// The same, f64 [], for which a strategy of one rank does not wait.
  virtual Tensor unread_norm(const Tensors& parameters) {
    return Tensor::scalar(grad_norm(parameters), DType::f64);
  }
  /// Before a step: what the program has changed in place of parameters that are shared out becomes
  /// what the step is taken from.
  virtual void keep_changes() {}
  virtual void after_step() {}

  /// Whether a model's own tensors are all of its state, on every rank.
  virtual bool keeps_whole_state() const { return true; }
  /// Whole states; on rank 0, elsewhere possibly empty.
  virtual NamedTensors model_state(nn::Module& module) { return module.unrouted_state(); }
  virtual optim::OptimizerState optimizer_state(const optim::Optimizer& optimizer);
  virtual void load_model_state(nn::Module& module, const NamedTensors& state) {
    module.load_state_dict(state);
  }
  virtual void load_optimizer_state(optim::Optimizer& optimizer,
                                    const optim::OptimizerState& state);
  /// What this rank has of the model's state. An optimizer's tensors lie in theirs as those of
  /// their parameters do. Nothing is sent; whoever writes to the tensors calls after_step() then.
  virtual LocalTensors local_state(nn::Module& module) {
    return whole_tensors(module, data_size(), data_rank());
  }
  /// Elements of the buckets or units in which gradients travel, their padding included.
  virtual int64_t padded_elements() const { return 0; }
  /// "fsdp on 4 ranks: 16 P / F, ..." with the bytes of a model of P parameters in f32, of each of
  /// which the optimizer keeps so many tensors (optim/registry.h).
  virtual std::string describe(int64_t parameters, int64_t state_tensors) const = 0;
};

/// `world` is null in a program of one rank, whose devices are then threads. Throws what
/// sharing_of() throws (strategy_kind.h).
std::unique_ptr<Strategy> make_strategy(const StrategyOptions& options, CommunicatorPtr world,
                                        int devices = 1);

}  // namespace weft::dist
