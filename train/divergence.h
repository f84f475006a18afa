// What went wrong where a loss or a gradient is not finite.
#pragma once

#include <functional>
#include <string>

#include "autograd/tape.h"

namespace weft::train {

/// Whether no element is a NaN or an infinity; true of integers.
bool is_finite(const Tensor& x);

/// The first of the tensors that is not finite, by name; empty where all are.
std::string first_nonfinite(const NamedTensors& tensors);

/// Repeats a forward and a backward pass with every op checked (AnomalyMode). Returns what the
/// first op that made a NaN says of it; empty where none did.
std::string first_anomaly(const std::function<void()>& pass);

}  // namespace weft::train
