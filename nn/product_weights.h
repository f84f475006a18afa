// Which parameters products alone read: inside an Autocast nobody sees of them more than its narrow
// dtype holds, so they may travel in it (dist/data_parallel/fsdp_wire.h).
#pragma once

#include <unordered_set>

#include "nn/module.h"

namespace weft::nn {

/// The ids of `root`'s weights of linear layers and convolutions, and of attention's projections,
/// that no other module has too. A class derived from such a layer may do something else with its
/// weight (standardise it, say), so only the classes of nn/layers.h themselves count.
std::unordered_set<const void*> product_weights(Module& root);

}  // namespace weft::nn
