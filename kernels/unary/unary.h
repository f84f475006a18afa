// Elementwise functions of one tensor: y[i] = f(x[i]).
//
// x, y: the same shape, any strides, y without repeated elements; y is assigned (=) and may be x
// itself. Any two dtypes: arithmetic is in f64 for an f64 x, in f32 for the other floats, in i64
// (wrapping around) for integers and bool, and the result is rounded once to y's dtype as the copy
// kernel converts. A test (is_nan, logical_not, ...) gives bool, whatever x is.
//
// An integer x has neg abs sign square relu, the roundings, the tests, scale and shift; no variant
// fits the others: cast to a float first.
//
//   unary({.op = UnaryOp::kGeluErf, .x = x, .y = y});
#pragma once

#include "kernels/op.h"

namespace weft::kernels {

enum class UnaryOp : uint8_t {
  kNeg,
  kAbs,
  kSign,  // -1, 0, 1; NaN stays NaN
  kSquare,
  kRelu,  // max(x, 0); NaN stays NaN
  kFloor,
  kCeil,
  kRound,  // halves to even
  kTrunc,
  kScale,      // alpha x
  kShift,      // x + alpha
  kLeakyRelu,  // x > 0 ? x : alpha x
  kReciprocal,
  kSqrt,
  kRsqrt,      // 1 / sqrt(x)
  kHardswish,  // x min(max(x + 3, 0), 6) / 6
  kElu,        // x > 0 ? x : alpha (exp(x) - 1)
  kExp,
  kExpm1,  // exp(x) - 1
  kLog,
  kLog1p,  // log(1 + x)
  kExp2,
  kLog2,
  kLog10,
  kSin,
  kCos,
  kTan,
  kAsin,
  kAcos,
  kAtan,
  kSinh,
  kCosh,
  kAsinh,
  kAcosh,
  kAtanh,
  kTanh,
  kErf,
  kSigmoid,   // 1 / (1 + exp(-x))
  kSoftplus,  // log(1 + exp(x))
  kSilu,      // x sigmoid(x)
  kGeluErf,   // x (1 + erf(x / sqrt 2)) / 2, of full relative accuracy in the tail
  kGeluTanh,  // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
  // Tests: y is bool.
  kLogicalNot,  // x == 0
  kIsNan,
  kIsInf,
  kIsFinite,
};

std::string_view name(UnaryOp op);
/// Whether the result is bool.
bool is_test(UnaryOp op);
/// Whether the op is defined on integers and bool.
bool takes_integers(UnaryOp op);

struct UnaryProblem;
/// A test has a bool y, and an integer x an op that takes integers.
bool unary_takes(UnaryOp op, DType x, DType y);
bool unary_fits(const UnaryProblem& problem);
/// A transcendental function that costs more than exp does, from a dtype to the same, and that has
/// no loop of its own for the dtype.
bool unary_fits_table(const UnaryProblem& problem);
inline constexpr DTypeSet kUnaryTableTypes = {DType::f16, DType::bf16};

struct UnaryProblem {
  UnaryOp op;
  Tensor x, y;
  double alpha = 1;  // scale, shift, leaky_relu, elu; rounded to the type of the arithmetic

  DType dtype() const { return x.dtype(); }
  Device device() const { return y.device(); }
  std::string describe() const;
};

/// The variant that fills the tables.
void unary_cpu_blocks(const UnaryProblem& problem);
/// y[i] = f(x[i]) for n elements of one arithmetic type; y is of that type, or bool for a test, and
/// may be x.
using UnaryLoop = void (*)(const void* x, void* y, int64_t n, double alpha);
/// What that variant does with a block: x converted to `type`, the loop, its result converted from
/// `result`.
struct UnaryBlocks {
  UnaryLoop loop;
  DType type, result;
};
UnaryBlocks unary_blocks(UnaryOp op, DType x, DType y);
/// The loop of an op that the C library computes: f64's transcendental functions, and those of f32
/// from exp2 to atanh, for instruction sets without vectors of them. Null for others.
UnaryLoop unary_libm_loop(UnaryOp op, DType type);

WEFT_DECLARE_OP(unary, UnaryProblem);

}  // namespace weft::kernels
