// Elementwise functions of two tensors: y[i] = f(a[i], b[i]).
//
// a, b, y: the same shape, any strides; broadcasting is view::expand, whose stride 0 costs nothing,
// and a scalar is an expanded 0-dim tensor. y has no repeated elements, is assigned (=) and may be
// a or b itself. Any dtypes, mixed too: arithmetic is in f64 when a or b is f64, else in f32 when
// one is floating, else in i64 (wrapping around); the result is rounded once to y's dtype as the
// copy kernel converts. Comparisons and logical ops give bool and count every nonzero number, NaN
// included, as true.
//
// Integers: div truncates toward zero; a division by zero and a negative exponent throw Error. The
// ops that only floats have (atan2, the gradients) fit no variant on integers.
//
//   binary({.op = BinaryOp::kAdd, .a = x, .b = view::expand(bias, x.shape()), .y = y});
#pragma once

#include "kernels/op.h"

namespace weft::kernels {

enum class BinaryOp : uint8_t {
  kAdd,
  kAddScaled,  // a + alpha b, the product rounded before the sum
  kSub,
  kMul,
  kDiv,
  kPow,
  kFloorDivide,  // the quotient rounded down; of floats, of the quotient that has no remainder
  kRemainder,    // a - b floor(a / b), with the sign of b
  kAtan2,        // the angle of the point (b, a), floats only
  kMaximum,      // NaN if either is
  kMinimum,
  // y is bool.
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kLogicalAnd,
  kLogicalOr,
  kLogicalXor,
  // Gradients dx = f'(a) b, where a is the input x of the function or, where said, its result, and
  // b is the gradient dy of its result.
  kReluGrad,       // a: x or y; a > 0 ? b : 0
  kLeakyReluGrad,  // a: x; a > 0 ? b : alpha b
  kSigmoidGrad,    // a: y; b a (1 - a)
  kTanhGrad,       // a: y; b (1 - a) (1 + a)
  kSiluGrad,       // a: x
  kGeluErfGrad,    // a: x
  kGeluTanhGrad,   // a: x
};

std::string_view name(BinaryOp op);
/// Whether the result is bool.
bool is_test(BinaryOp op);
/// Whether the op is defined on integers and bool.
bool takes_integers(BinaryOp op);

struct BinaryProblem;
/// A test has a bool y, and integers an op that takes integers.
bool binary_takes(BinaryOp op, DType a, DType b, DType y);
bool binary_fits(const BinaryProblem& problem);
/// A gradient by way of a slope, all tensors of one dtype.
bool binary_fits_table(const BinaryProblem& problem);
inline constexpr DTypeSet kBinaryTableTypes = {DType::f16, DType::bf16};
/// And not integers' divisions or pow, which may throw.
bool binary_fits_cuda(const BinaryProblem& problem);

struct BinaryProblem {
  BinaryOp op;
  Tensor a, b, y;
  double alpha = 1;  // add_scaled, leaky_relu_grad; rounded to the type of the arithmetic

  DType dtype() const { return promote(a.dtype(), b.dtype()); }
  Device device() const { return y.device(); }
  std::string describe() const;
};

/// The variant that fills the tables.
void binary_cpu_blocks(const BinaryProblem& problem);
/// y[i] = f(a[i], b[i]) for n elements of one arithmetic type; y is of that type, or bool for a
/// test, and may be a or b.
using BinaryLoop = void (*)(const void* a, const void* b, void* y, int64_t n, double alpha);
/// What that variant does with a block: a and b converted to `type`, the loop, its result converted
/// from `result`.
struct BinaryBlocks {
  BinaryLoop loop;
  DType type, result;
};
BinaryBlocks binary_blocks(BinaryOp op, DType a, DType b, DType y);
/// The loop of an op that goes one by one: pow, the divisions of integers, those that round down
/// and atan2, of f32 for instruction sets without vectors of them, and f64's gradients of
/// transcendental functions. Null for others.
BinaryLoop binary_scalar_loop(BinaryOp op, DType type);

WEFT_DECLARE_OP(binary, BinaryProblem);

}  // namespace weft::kernels
