// The inner loops of unary: a block of one arithmetic type in, a block out.
#pragma once

#include "kernels/unary/unary.h"

namespace weft::kernels {

/// y[i] = f(x[i]) for n elements; y is of x's type, or bool for a test. y may be x.
using UnaryLoop = void (*)(const void* x, void* y, int64_t n, double alpha);

/// The loop of an op that the C library computes: f64's transcendental functions, and sin and cos.
/// Null for others.
UnaryLoop unary_libm_loop(UnaryOp op, DType type);

}  // namespace weft::kernels
