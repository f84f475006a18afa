// What can be said of a strategy: the one struct that the command line, Fabric, a run's record and
// the planner share.
#pragma once

#include <cstdint>
#include <string>

#include "dist/model_parallel/micro_batch.h"

namespace weft::dist {

struct StrategyOptions {
  std::string name = "auto";       // of strategy.inc; auto: ddp on several devices, single on one
  int shard_size = 0;              // devices that share one copy; 0: the largest proper divisor
  int tensor_parallel = 0;         // devices that share a layer; 0: all with tp, 2 with fsdp+tp
  bool sequence_parallel = false;  // tokens are dealt out between cut layers
  bool parallel_head = false;      // the head, and with it the loss, is cut by classes
  int pipeline_stages = 0;         // 0: all devices
  Schedule schedule = Schedule::k1F1B;  // of a pipeline; the others leave it alone
  int micro_batches = 0;                // of a pipeline's batch; 0: two per stage
  bool cpu_offload = false;             // see FsdpOptions
};

/// Settings above that some strategies have; a row of strategy.inc has the sum of its own.
enum class Settings : uint8_t {
  kNone = 0,
  kShardSize = 1 << 0,
  kTensorParallel = 1 << 1,
  kSequenceParallel = 1 << 2,
  kParallelHead = 1 << 3,
  kPipelineStages = 1 << 4,
  kMicroBatches = 1 << 5,
  kCpuOffload = 1 << 6,
};
constexpr Settings operator|(Settings a, Settings b) {
  return static_cast<Settings>(static_cast<uint8_t>(a) | static_cast<uint8_t>(b));
}
constexpr bool contains(Settings all, Settings one) {
  return (static_cast<uint8_t>(all) & static_cast<uint8_t>(one)) != 0;
}

}  // namespace weft::dist
