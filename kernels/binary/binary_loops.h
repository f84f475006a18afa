// The inner loops of binary: two blocks of one arithmetic type in, a block out.
#pragma once

#include "kernels/binary/binary.h"

namespace weft::kernels {

/// y[i] = f(a[i], b[i]) for n elements; y is of the operands' type, or bool for a test. y may be a
/// or b.
using BinaryLoop = void (*)(const void* a, const void* b, void* y, int64_t n, double alpha);

/// The loop of an op that goes one by one: pow, the division of integers, f64's gradients of
/// transcendental functions. Null for others.
BinaryLoop binary_scalar_loop(BinaryOp op, DType type);

}  // namespace weft::kernels
