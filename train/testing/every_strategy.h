// The strategies under which tests hold Fabric to one device.
#pragma once

#include <vector>

#include "train/fabric.h"

namespace weft::train {

/// Each of several devices, some in several shapes.
inline std::vector<FabricOptions> every_strategy() {
  return {
      {.devices = 3, .strategy = {.name = "dp"}},
      {.devices = 2, .strategy = {.name = "ddp"}},
      {.devices = 3, .strategy = {.name = "fsdp"}},
      {.devices = 2, .strategy = {.name = "fsdp", .shard_grad_op = true}},
      {.devices = 2, .strategy = {.name = "zero1"}},
      {.devices = 3, .strategy = {.name = "zero2"}},
      {.devices = 6, .strategy = {.name = "hsdp", .shard_size = 3}},
      {.devices = 3, .strategy = {.name = "tp"}},
      {.devices = 4, .strategy = {.name = "fsdp+tp"}},
      {.devices = 6, .strategy = {.name = "tp", .tensor_parallel = 3}},
      {.devices = 3, .strategy = {.name = "pipeline"}},
      {.devices = 3, .strategy = {.name = "pipeline", .schedule = dist::Schedule::kGpipe}},
      {.devices = 4, .strategy = {.name = "pipeline", .pipeline_stages = 2, .micro_batches = 3}},
  };
}

}  // namespace weft::train
