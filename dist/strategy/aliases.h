// Strategies under the names that others give them.
//
//   named_here({.name = "deepspeed_stage_3_offload"})   // zero3 with cpu_offload
//
// Lightning Fabric: ddp_spawn, ddp_fork, ddp_notebook, these and ddp with
// _find_unused_parameters_true or _false, fsdp_cpu_offload, deepspeed, deepspeed_stage_1 to 3, each
// with _offload. Accelerate: NO, MULTI_GPU, MULTI_CPU, FSDP, DEEPSPEED, and FSDP's FULL_SHARD,
// SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2. DeepSpeed: zero_0 to zero_3. In any
// case of letters, with - or _.
#pragma once

#include "dist/strategy/options.h"

namespace weft::dist {

/// The same under a name of strategy.inc, or "auto", and with the settings that the name implies.
/// Throws Error for an unknown name: it lists ours, and names the nearest of all. Offloading to
/// NVMe, which does not exist here, is an Error of its own.
StrategyOptions named_here(const StrategyOptions& options);

/// What a state is saved as, "full" or "sharded", by these names, FSDP's (SHARDED_STATE_DICT) or
/// Accelerate's. Throws Error for others.
std::string state_dict_type_here(const std::string& name);

}  // namespace weft::dist
