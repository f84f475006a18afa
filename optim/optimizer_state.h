// What a checkpoint keeps of an optimizer.
#pragma once

#include <nlohmann/json.hpp>

#include "core/tensor.h"

namespace weft::optim {

struct OptimizerState {
  NamedTensors tensors;   // "<parameter>.exp_avg" and the like, "<parameter>.step" (i64 [])
  nlohmann::json groups;  // their options
};

}  // namespace weft::optim
