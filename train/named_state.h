// What Fabric::save() keeps and Fabric::load() fills, under a name of the caller's choice.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <variant>

#include "core/tensor.h"

namespace weft::nn {
class Module;
}
namespace weft::optim {
class Optimizer;
class Scheduler;
class GradScaler;
}  // namespace weft::optim
namespace weft::data {
class Loader;
}

namespace weft::train {

/// `{"model", &model}`, `{"epoch", &epoch}`. The name has no dots and is nobody else's; a loader's
/// state is its position, a tensor keeps its shape. NamedTensors are those of rank 0, and become
/// what the file has, on the CPU. Scalars are int64_t and double. A file calls the kinds below, in
/// their order: model, optimizer, scheduler, scaler, loader, tensor, tensors, integer, number,
/// truth, text, json.
struct NamedState {
  using Value = std::variant<nn::Module*, optim::Optimizer*, optim::Scheduler*, optim::GradScaler*,
                             data::Loader*, Tensor*, NamedTensors*, int64_t*, double*, bool*,
                             std::string*, nlohmann::json*>;

  /// From a pointer to one of these, or to what is derived from it.
  template <class T>
  NamedState(std::string name, T* value) : name(std::move(name)), value(value) {}

  std::string name;
  Value value;
};

}  // namespace weft::train
