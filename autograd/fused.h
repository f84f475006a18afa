// Elementwise ops in one pass over memory.
#pragma once

#include <functional>

#include "autograd/tape.h"

namespace weft::ops {

/// function(inputs), whose elementwise ops (unary and binary ones, where, cast and what is made of
/// them) run as one pass over memory, forward and backward, with the bits that they have one by
/// one:
///
///   const auto gate = [](const Tensors& t) { return sigmoid(t[0] * t[1] + t[2]) * t[0]; };
///   const Tensor y = ops::fused(gate, {x, weight, bias});
///
/// While the function runs, its elementwise ops are only noted down. Whatever reads an element,
/// such as an op of another kind, has the ops before it computed first. Only the inputs are kept:
/// the gradient runs the function again, under the same autocast and random numbers, in one pass
/// with its own ops. The function may be run at any time until then and has to do the same each
/// time.
///
/// Throws Error where the function uses a tensor that requires a gradient and is not among the
/// inputs.
Tensor fused(const std::function<Tensor(const Tensors&)>& function, const Tensors& inputs);

}  // namespace weft::ops
