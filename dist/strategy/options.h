// What can be said of a strategy: the one struct that the command line, Fabric, a run's record and
// the planner share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dist/model_parallel/micro_batch.h"

namespace weft::dist {

struct StrategyOptions {
  std::string name = "auto";       // of strategy.inc; auto: ddp on several devices, single on one
  int shard_size = 0;              // devices that share one copy; 0: the largest proper divisor
  int tensor_parallel = 0;         // devices that share a layer; 0: all with tp, 2 with fsdp+tp
  bool sequence_parallel = false;  // tokens are dealt out between cut layers
  bool parallel_head = false;      // the head, and with it the loss, is cut by classes
  int pipeline_stages = 0;         // 0: all devices
  Schedule schedule = Schedule::kUsual;  // of a pipeline
  int micro_batches = 0;                 // of a pipeline's batch; 0: two per stage
  bool cpu_offload = false;              // see FsdpOptions, as
  bool offload_optimizer = false;        // this
  // Of gradients that are summed in buckets (DdpOptions).
  int bucket_mb = 0;           // MiB of a bucket; 0: 25
  std::string compress_dtype;  // bf16 or fp16: what gradients travel in; empty: their own
  bool static_graph = false;   // every iteration uses the same parameters
  bool find_unused = false;    // some iterations leave parameters without a gradient
  // Of sharded parameters (FsdpOptions).
  std::string wrap;            // units: "Block,Head", classes; "100000", modules so large; empty:
                               // those that the model names
  bool shard_grad_op = false;  // parameters stay whole from forward to backward
  bool no_prefetch = false;    // a unit is fetched when it is touched, and no sooner
  int resident_units = 0;      // that are whole at a time; 0: 2
  std::string param_dtype;  // bf16, fp16: what whole parameters are and travel in; fp32: their own;
                            // empty: the same, but product_dtype for what it is about
  std::string reduce_dtype;  // bf16, fp16: what gradients travel in; fp32 and empty: their own
  std::string buffer_dtype;  // bf16, fp16: what floating buffers are; fp32 and empty: their own
  // No setting but the run's precision, which Fabric fills in. bf16, fp16: what all products round
  // their operands to, so that weights may travel in it (FsdpOptions); empty: no such thing.
  std::string product_dtype;
  // Filled in likewise: the numbers of dp's GPUs; empty: the model's and those behind it.
  std::vector<int> device_numbers;
};

/// Settings above that some strategies have; a row of strategy.inc has the sum of its own.
enum class Settings : uint32_t {
  kNone = 0,
  kShardSize = 1 << 0,
  kTensorParallel = 1 << 1,
  kSequenceParallel = 1 << 2,
  kParallelHead = 1 << 3,
  kPipelineStages = 1 << 4,
  kMicroBatches = 1 << 5,
  kCpuOffload = 1 << 6,
  kBuckets = 1 << 7,         // all of DdpOptions
  kMixedPrecision = 1 << 8,  // param_dtype, reduce_dtype, buffer_dtype
  kUnits = 1 << 9,           // wrap, no_prefetch
  kResharding = 1 << 10,     // shard_grad_op, resident_units
  kOffloadOptimizer = 1 << 11,
  kSchedule = 1 << 12,
};
constexpr Settings operator|(Settings a, Settings b) {
  return static_cast<Settings>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b));
}
constexpr bool contains(Settings all, Settings one) {
  return (static_cast<uint32_t>(all) & static_cast<uint32_t>(one)) != 0;
}

}  // namespace weft::dist
