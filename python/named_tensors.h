// Tensors with their names, as Python's dicts.
#pragma once

#include "python/casters.h"

namespace weft::python {

inline nb::dict dict_of(const NamedTensors& tensors) {
  nb::dict dict;
  for (const auto& [name, tensor] : tensors) dict[name.c_str()] = tensor;
  return dict;
}

/// In the dict's order.
inline NamedTensors tensors_of(const nb::dict& dict) {
  NamedTensors tensors;
  for (const auto& [name, tensor] : dict)
    tensors.emplace_back(nb::cast<std::string>(name), nb::cast<Tensor>(tensor));
  return tensors;
}

}  // namespace weft::python
