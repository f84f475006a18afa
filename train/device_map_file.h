// Device maps in Accelerate's form: a JSON object from module names to "cpu", "disk", a device or
// the number of a GPU.
//
//   {"conv_proj": 0, "class_token": 0, "encoder.pos_embedding": 0, "encoder.layers": "cuda:0",
//    "encoder.layers.encoder_layer_23": "cpu", "encoder.ln": "disk", "heads": "disk"}
#pragma once

#include "io/files.h"
#include "nn/dispatch.h"

namespace weft::train {

/// The first GPU that it names is the main device; without one the CPU. Throws Error naming the
/// file, and the entry that is no place.
nn::DeviceMap read_device_map(const io::Path& file);

/// "cuda:0=10GB,cpu=4GiB". Throws Error for what is no device or no size.
nn::MemoryBudgets parse_memory_budgets(const std::string& text);

}  // namespace weft::train
