// Inference of a model that is larger than memory: each layer's weights rest on a device, in the
// CPU's memory or in a file, and are at hand while the layer runs. (Accelerate calls it big-model
// inference, and has the same map.)
//
//   std::unique_ptr<nn::Module> model;
//   {
//     const nn::MetaScope meta;
//     model = models::make_model("vit_l_16");            // takes no memory
//   }
//   const nn::DeviceMap map = nn::auto_device_map(*model, {{gpu, 600'000'000}, {cpu,
//   300'000'000}}); nn::dispatch(*model, io::read_safetensors("vit_l_16.safetensors").tensors,
//   map); const Tensor logits = (*model)(images);
//
// A layer is a segment of the model (nn/structure.h). A tensor that a second one reads, too, as a
// head that is tied to an embedding does, rests with the layer that owns it, and is at hand for
// both. A layer that rests on a GPU runs there. Others run on the map's main device: weights that
// rest in the CPU's memory are copied to a GPU for the time, those on the disk are read from their
// mapped file, which on the CPU takes no copy, while the file is asked for those of the next layer.
// Afterwards both are let go. Results have the bits of a run with all weights in memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nn/module.h"

namespace weft::nn {

/// Where weights rest: on a device, or none: on the disk.
using Place = std::optional<Device>;
/// "cpu", "cuda:0", "disk"
std::string to_string(const Place& place);

struct DeviceMap {
  /// By names of modules and tensors: what lies below a name goes with the longest one that it lies
  /// below. "" is the model.
  std::vector<std::pair<std::string, Place>> places;
  Device main = {};  // where layers run that do not rest on a GPU
};

/// Where the map puts a tensor; null: none of its names covers it.
const Place* place_of(const std::string& tensor, const DeviceMap& map);

/// Bytes that weights may take on each device, at rest and at hand. Devices are filled in order,
/// the first is the main one.
using MemoryBudgets = std::vector<std::pair<Device, int64_t>>;

/// What to do with a model's weights: to follow a map, or to make one from budgets.
struct Placement {
  std::optional<DeviceMap> map;
  MemoryBudgets budgets;  // without a map
};

/// Layers in order on the first device that has room, the remainder on the disk. Where some layer
/// has to come to the main device, room for the largest is kept there. Throws Error for a model
/// without segments, for no device or one named twice, and naming the largest layer when the main
/// device's budget is smaller.
DeviceMap auto_device_map(Module& model, const MemoryBudgets& budgets);

/// Takes the model's weights from `state`, also under older names, converted to its dtypes, and
/// leads model(x) through its layers; what runs so is not recorded for a backward pass. Weights on
/// the disk must be views of a mapped file in `state`, which is kept; nobody may change them.
/// Returns what rests where: "3 of 26 layers on cpu (151.2 MB), 23 on disk (1.1 GB)".
///
/// Throws Error naming the module, tensor or layer for a map with an unknown name, one that leaves
/// a tensor without a place or puts a layer in two; and for names and shapes of `state` that are
/// not the model's. Then nothing has changed.
std::string dispatch(Module& model, const NamedTensors& state, const DeviceMap& map);

}  // namespace weft::nn
