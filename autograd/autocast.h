// Mixed precision: inside an Autocast, matrix products run in a narrow dtype on f32 weights.
//
// Ops fall into PyTorch's three lists: low precision (linear, matmul, conv2d, attention), f32
// (softmax, log_softmax, cross_entropy, layer_norm, exp, log, pow, sum, ...), and the rest, which
// follow their inputs. A weight is cast once: the cast is kept until the outermost Autocast ends.
#pragma once

#include "autograd/tape.h"

namespace weft {

class Autocast {
 public:
  /// Enters low precision on this thread; f32 turns it off.
  explicit Autocast(DType dtype);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  DType previous_;
};

/// The low-precision dtype in force on this thread; f32 when there is none.
DType autocast_dtype();
/// The dtype in which a low-precision op computes on `x`: the one in force for f32, f16 and bf16
/// inputs.
DType autocast_low(const Tensor& x);
/// x as an op of the low-precision list sees it; recorded, cached for leaves that require a
/// gradient.
Tensor autocast_cast(const Tensor& x);
/// x as an op of the f32 list sees it: widened to f32 when it is narrower, inside an Autocast only.
Tensor autocast_f32(const Tensor& x);
/// The raw cast of a weight, cached and not recorded: for ops that return its gradient in f32
/// themselves.
Tensor autocast_weight(const Tensor& weight, DType dtype);

}  // namespace weft
