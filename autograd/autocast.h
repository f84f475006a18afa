// Mixed precision: inside an Autocast, matrix products run in a narrow dtype on f32 weights.
//
//   {
//     Autocast mode(DType::bf16);                  // or f16, then with optim::GradScaler
//     loss = cross_entropy(model(images), labels);
//     backward(loss);
//   }
//
// Ops fall into PyTorch's lists of its CUDA autocast, the same on every device and for every dtype:
//   low      operands cast to the narrow dtype: linear, matmul, einsum, convolutions,
//            attention
//   f32      operands widened to f32: exp, log and their kin, tan, sinh, cosh, pow, rsqrt,
//            reciprocal, sums, norms, softmax, log_softmax, layer_norm (which writes the narrow
//            dtype at once), group_norm, interpolate,
//            losses
//   promote  operands brought to the widest of theirs: cat, stack, scatter_add, index_put, atan2
// All others follow their inputs, and f64 operands are left alone (autograd/autocast_test.cc).
//
// The cast of an f32 leaf that requires a gradient is kept until the outermost Autocast ends or the
// leaf changes: one scope around the micro-batches of a step casts each weight once. On a GPU
// optimizers write the narrow weight beside the wide one, and none is cast at all
// (autograd/narrow_copies.h). On a CPU the cast of a weight of linear, mlp or conv2d goes with the
// tape that saved it, so that backward frees what its gradients take. Scopes nest; Autocast(f32)
// turns casting off until it ends.
#pragma once

#include "autograd/tape.h"
#include "core/scoped_value.h"

namespace weft {

class Autocast : ScopedValue<DType> {
 public:
  /// Enters low precision on this thread; f32 turns it off. Throws Error for other dtypes than
  /// bf16, f16 and f32.
  explicit Autocast(DType dtype);
  ~Autocast();
};

/// The low-precision dtype in force on this thread; f32 when there is none.
DType autocast_dtype();

// For ops: their operands as their list has them. Without an Autocast in force all but
// autocast_products and autocast_weight return what they were given.

/// Low: x in the dtype in force; recorded, cached for leaves that require a gradient.
Tensor autocast_cast(const Tensor& x);
/// Low: the dtype in which a product of x and weight is formed: the one in force, or without one,
/// or beside an f64, the wider of theirs.
DType autocast_products(const Tensor& x, const Tensor& weight);
/// Low: the raw cast of a weight, not recorded, and of a leaf cached: for ops that return its
/// gradient in the weight's dtype themselves.
Tensor autocast_weight(const Tensor& weight, DType dtype);
/// f32: x widened, when it is narrower.
Tensor autocast_f32(const Tensor& x);

}  // namespace weft
