// Activation checkpointing: memory for compute.
#pragma once

#include <functional>

#include "autograd/tape.h"

namespace weft {

/// function(inputs), keeping only the inputs: intermediate results are computed again when the
/// gradient is needed (Chen, Xu, Zhang, Guestrin: "Training Deep Nets with Sublinear Memory Cost",
/// 2016). The second run sees the same random numbers and the same autocast and fp8, and leaves the
/// generator where it was. Parameters that the function uses receive their gradients as usual,
/// in grad() those that are asked for.
Tensor checkpoint(const std::function<Tensor(const Tensors&)>& function, const Tensors& inputs);

}  // namespace weft
