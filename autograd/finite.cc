#include "autograd/finite.h"

#include <cmath>

#include "autograd/ops.h"

namespace weft {

bool is_finite(const Tensor& x) {
  const NoGrad guard;
  if (!is_floating(x.dtype()) || std::isfinite(ops::sum(x).item())) return true;
  // Finite numbers may have an infinite sum.
  return std::isfinite(ops::sum(x * 0.0).item());
}

std::string first_nonfinite(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    if (tensor.defined() && !is_finite(tensor)) return name;
  }
  return "";
}

}  // namespace weft
