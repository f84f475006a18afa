// Fully sharded data parallelism: every rank keeps a shard of the parameters, of their gradients
// and of the optimizer's state, and gets the rest when it is needed.
//
//   FullySharded fsdp(model, {.shard = world}, model.structure().units);
//   optim::AdamW optimizer(fsdp.shard(optim::ParameterGroups(model.named_parameters())), {...});
//   backward(ops::cross_entropy(model(images), labels));
//   optimizer.step(optim::clip_coefficient(fsdp.grad_norm(), 1.0));
//
// The model is split into units (fsdp_unit.h): the modules that a policy chooses, and the rest. A
// parameter of the model is a view of memory that comes and goes (core/tensor.h): the first
// operation that touches it, in forward, backward or a recomputation, unshards its unit by an
// all-gather. A unit's memory is freed when enough others have been unsharded after it, and in
// backward as soon as its gradients are complete; a reduce-scatter sums these. The order of
// unsharding is remembered: in the next iteration a unit is fetched while the one before it
// computes.
//
// All ranks have to touch the units in one order: a rank that is out of samples runs one with
// weight 0, and reading the model's state_dict() on one rank alone would wait for the others.
//
// The optimizer works on the shards: shard() gives it, for each parameter, the flat slice of it
// that this rank keeps, possibly empty, under the parameter's name. A slice's gradient is dropped
// and added to by itself, as a parameter's on one device; where no rank has used the parameter it
// is zero, unless that is frozen. A pass that fails on every rank and is caught leaves all
// gradients as they were before it, those at hand under no_sync too.
//
//   strategy      parameters                      gradients                      optimizer
//   kFullShard    1/F, unsharded twice a step     1/F                            1/F  ZeRO-3
//   kShardGradOp  1/F, whole forward to backward  1/F                            1/F
//   kZero2        whole                           1/F                            1/F  ZeRO-2
//   kZero1        whole                           whole in backward, then 1/F    1/F  ZeRO-1
//
// With a replicate group of R ranks, gradients are summed over it as well (HYBRID_SHARD: F inside a
// node, R across; F = 1 is NO_SHARD, plain data parallelism).
//
// Inside an Autocast products round their weights to its dtype in any case. Weights that they alone
// read (nn/product_weights.h) travel in it, FsdpOptions::product_dtype, and are widened on arrival:
// half the bytes, and the same bits of whatever is computed.
//
// Rajbhandari et al.: "ZeRO", SC 2020; Zhao et al.: "PyTorch FSDP", VLDB 2023.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dist/comm/communicator.h"
#include "nn/module.h"
#include "nn/structure.h"
#include "optim/optimizer.h"

namespace weft::dist {

enum class Sharding : uint8_t { kFullShard, kShardGradOp, kZero2, kZero1 };

using nn::wrap_modules;
using nn::WrapPolicy;

/// Modules with at least so many parameters that are not in a smaller such module.
WrapPolicy wrap_by_size(int64_t parameters = 100'000'000);
/// Modules of classes of these names, without or with their namespaces: "EncoderBlock". When a
/// model is cut that has none of some name, Error lists the classes that it has.
WrapPolicy wrap_by_class_names(std::vector<std::string> names);

struct FsdpOptions {
  CommunicatorPtr shard;      // the ranks that hold a copy together
  CommunicatorPtr replicate;  // the ranks that hold the same part of other copies; may be null
  Sharding sharding = Sharding::kFullShard;
  /// kMean over all ranks, or kSum where the loss was weighted with the rank's share.
  ReduceOp average = ReduceOp::kMean;
  /// Of unsharded parameters, and of the gradients that travel and add up under no_sync. f32:
  /// those of the parameters. Parts, and with them the optimizer, keep the parameters' dtype.
  ///
  /// Of F ranks' gradients g that travel in 16 bits, the sum differs from that in f32 by at most
  /// (2 u + u^2) sum |g|, with u = 2^-8 for bf16 and 2^-11 for f16 (in its range): each is rounded
  /// once, and their sum, added in f32, once more. Among R copies that sum's sum is rounded too:
  /// (3 u + 3 u^2 + u^3) sum |g|.
  DType param_dtype = DType::f32;
  DType reduce_dtype = DType::f32;
  /// What f32 weights travel in that products alone read: bf16 or f16, if every product runs in an
  /// Autocast to it; f32: their own.
  DType product_dtype = DType::f32;
  /// Of floating buffers. f32: as they are.
  DType buffer_dtype = DType::f32;
  /// Parts of parameters and gradients, and with them the optimizer, stay on the CPU; what is
  /// unsharded, and gradients until they are summed, live on the device of the model.
  bool cpu_offload = false;
  /// The parts that the optimizer works on, with it and their gradients, stay on the CPU, but what
  /// is sent of them to be unsharded stays on the device from one step to the next.
  bool offload_optimizer = false;
  bool prefetches = true;
  /// kFullShard: units that are whole at a time, besides the one that is fetched ahead; more while
  /// a kernel reads more of them.
  int resident_units = 2;
};

class FullySharded {
 public:
  /// Copies rank 0's parameters and buffers to all, then keeps the parts. At no time is more than
  /// one unit held twice. On the other ranks the module may be on the meta device (nn/meta.h): it
  /// gets no more memory than a unit at a time. Throws Error for a unit of several dtypes and for
  /// groups of no use.
  FullySharded(nn::Module& module, const FsdpOptions& options, const WrapPolicy& policy = {});

  /// The slices that this rank keeps, by their parameters' names.
  NamedTensors named_parameters() const;
  /// Groups of the model's parameters as groups of their slices, options kept.
  optim::ParameterGroups shard(const optim::ParameterGroups& groups) const;
  /// What the program has changed in place of whole parameters becomes this rank's slices', alike
  /// on every rank. It does so when units are resharded and when a state is asked for; to be called
  /// where parameters may have been changed between a backward pass and the optimizer's step.
  /// Throws Error where the unsharded parameters are rounded.
  void keep_changes();
  /// To be called after each step of the optimizer: brings whole copies up to date (ZeRO-1 and -2).
  void after_step();
  /// after_step() if the optimizer has changed the parts since the last one.
  void refresh();

  /// Copies rank 0's buffers to all, those that were changed in place and those that were replaced.
  void broadcast_buffers();

  /// Has a rank none of whose parameters a loss of these outputs reaches take part in the sums.
  void follow(const Tensors& outputs);
  /// The norm of the gradients of the whole model, exact and the same for any number of ranks.
  double grad_norm() const;

  /// Of what has added up under no_sync of these parameters of the model: drops it, multiplies it.
  void drop_local_gradients(const Tensors& parameters);
  void scale_local_gradients(const Tensors& parameters, double factor);
  /// While the result lives, gradients stay whole on their rank and add up, in reduce_dtype.
  std::shared_ptr<void> no_sync();
  /// Sums what has added up under no_sync without a backward: for a rank without a sample.
  void synchronize();

  /// The whole state, unit by unit; every rank calls. Only the first rank of the shard group gets
  /// it, the others an empty list, unless `everywhere`.
  NamedTensors full_state_dict(bool everywhere = false);
  /// Every rank calls, with the whole state.
  void load_full_state_dict(const NamedTensors& state);
  /// An optimizer's state on slices as that of the whole parameters, and back.
  optim::OptimizerState full_optimizer_state(const optim::OptimizerState& sharded,
                                             bool everywhere = false);
  optim::OptimizerState shard_optimizer_state(const optim::OptimizerState& full) const;

  /// What this rank keeps of an entry of the model's state_dict(): of a parameter its elements from
  /// `first` on, flat; a buffer whole. The tensor is a handle on what the optimizer works on.
  struct Kept {
    std::string name;
    Tensor tensor;
    Shape shape;  // of the whole
    bool is_buffer = false;
    int64_t first = 0;
  };
  std::vector<Kept> kept_state() const;

  /// Bytes this rank holds, by kind.
  struct Memory {
    int64_t parameters = 0;   // parts
    int64_t gradients = 0;    // parts
    int64_t accumulated = 0;  // whole gradients, under no_sync
    int64_t unsharded = 0;    // whole units at hand
    int64_t peak_unsharded = 0;
    int64_t peak_reducing = 0;  // gradients on their way
  };
  Memory memory() const;
  void reset_peak_memory();
  /// Names of the units with their elements, padding included.
  std::vector<std::pair<std::string, int64_t>> units() const;
  /// Units unsharded since the construction, each as often as it was.
  int64_t unshardings() const;
  /// Bytes of unsharding and reducing that left this rank since the construction, as counted
  /// beneath the collectives.
  int64_t bytes_sent() const;

 private:
  class Engine;
  std::shared_ptr<Engine> engine_;
};

}  // namespace weft::dist
