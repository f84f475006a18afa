// Device maps in Accelerate's form: a JSON object from module names to "cpu", "disk", a device or
// the number of a GPU. And what else somebody may say of where weights rest.
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

/// "cpu", "disk", "cuda:1", or "1", a GPU's number. Throws Error for anything else.
nn::Place parse_place(const std::string& text);
/// The same of what has a memory budget, which the disk has not.
Device parse_budgeted_device(const std::string& text);

/// A place for all of a model's weights, or else the path of a file. Throws Error naming a text
/// that is neither, and what read_device_map() throws.
nn::DeviceMap parse_device_map(const std::string& text);

/// "cuda:0=10GB,cpu=4GiB". Throws Error for what is no device or no size.
nn::MemoryBudgets parse_memory_budgets(const std::string& text);

/// What "auto" goes by where nobody says: nine tenths of the memory that each GPU has free, and
/// then of what the system has available. The remainder is for what layers compute. GPUs are those
/// that kernels run on; an emulated one is not among them.
nn::MemoryBudgets available_budgets();

}  // namespace weft::train
