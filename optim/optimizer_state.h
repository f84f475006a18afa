// What a checkpoint keeps of an optimizer.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/tensor.h"

namespace weft::optim {

struct OptimizerState {
  NamedTensors tensors;   // "<parameter>.exp_avg" and the like, "<parameter>.step" (i64 [])
  nlohmann::json groups;  // their options
};

/// The parameter of such a tensor; "" of a count of steps, which nobody cuts.
inline std::string parameter_of(const std::string& name) {
  return name.ends_with(".step") ? "" : name.substr(0, name.rfind('.'));
}

}  // namespace weft::optim
