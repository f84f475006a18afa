// Whether numbers are numbers, and where they first were not.
#pragma once

#include <string>

#include "autograd/tape.h"

namespace weft {

/// Whether no element is a NaN or an infinity; true of integers.
bool is_finite(const Tensor& x);

/// The name of the first of the tensors that is not finite; empty where all are.
std::string first_nonfinite(const NamedTensors& tensors);

}  // namespace weft
