// Tensors with their names, in order: parameters, buffers, the contents of a checkpoint.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace weft {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

}  // namespace weft
