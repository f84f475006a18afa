// Plain loops in f64, in long double where the result is f64.
//
// Exact: everything up to hardswish and the tests is correctly rounded at each step of its
// definition (f32 arithmetic in f64 rounds as f32 does: 53 >= 2 * 24 + 2, Figueroa 1995), so
// equality is demanded.
//
// Approximated, in units u of f32's roundoff: expm1 log log1p carry the ULPs that hwy/contrib/math
// states (1 ULP = 2u). exp and tanh are those of kernels/simd/math_inl.h, whose largest errors over
// every 997th float are 1.4u and 2.4u, exp2 to atanh those of kernels/simd/libm_inl.h, with 1.3u
// (sin, cos) to 4.3u (asin) over every 61st float (sin, cos, tan) or every 1009th, or the C
// library's, at most 2 ULP in f32 and f64 (as below); CUDA's have up to 4 ULP (CUDA C++ Programming
// Guide, "Mathematical Functions"), hence their 8u. elu is expm1, of any of these, and one product.
// The rest is the sum of their steps' errors. Over every 17th of all 2^32 floats, on AVX-512, AVX2
// and the baseline, the largest errors are below these. Beside it an exponential below 2^-126 has
// lost up to 2^-149, times |x| in x sigmoid(x). gelu_tanh rounds the argument z of its sigmoid to
// 3u of itself, which changes the sigmoid by |z| (1 - sigmoid(z)) as much.
//
// f64 is the C library's: glibc's manual gives at most 2 ULP for the functions here ("Known Maximum
// Errors in Math Functions"); erfc's argument x / sqrt 2 is rounded twice, times x^2 in the tail.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/elementwise/convert.h"
#include "kernels/elementwise/reference.h"
#include "kernels/unary/unary.h"
#include "numerics/error_bounds.h"

namespace weft::kernels {
namespace {

/// A case of a switch over ops.
#define WEFT_UNARY(op, ...) \
  case UnaryOp::op:         \
    return __VA_ARGS__

double exact(UnaryOp op, double x, double alpha, DType type) {
  switch (op) {
    WEFT_UNARY(kNeg, -x);
    WEFT_UNARY(kAbs, std::abs(x));
    WEFT_UNARY(kSign, x > 0 ? 1 : x < 0 ? -1 : x);
    WEFT_UNARY(kSquare, x * x);
    WEFT_UNARY(kRelu, x < 0 ? 0 : x);
    WEFT_UNARY(kFloor, std::floor(x));
    WEFT_UNARY(kCeil, std::ceil(x));
    WEFT_UNARY(kRound, std::isinf(x) ? x : x - std::remainder(x, 1.0));
    WEFT_UNARY(kTrunc, std::trunc(x));
    WEFT_UNARY(kScale, alpha * x);
    WEFT_UNARY(kShift, x + alpha);
    WEFT_UNARY(kLeakyRelu, x > 0 ? x : alpha * x);
    WEFT_UNARY(kReciprocal, 1 / x);
    WEFT_UNARY(kSqrt, std::sqrt(x));
    WEFT_UNARY(kRsqrt, 1 / rounded_to(std::sqrt(x), type));
    case UnaryOp::kHardswish: {
      const double shifted = rounded_to(x + 3, type);
      const double gate = std::isnan(x) ? x : std::clamp(shifted, 0.0, 6.0);
      return rounded_to(x * gate, type) / 6;
    }
      WEFT_UNARY(kLogicalNot, x == 0);
      WEFT_UNARY(kIsNan, std::isnan(x));
      WEFT_UNARY(kIsInf, std::isinf(x));
      WEFT_UNARY(kIsFinite, std::isfinite(x));
    default:
      WEFT_ASSERT(false);
  }
}

/// The units are those of the value itself.
Approximate approximate(UnaryOp op, Real x, Real alpha, bool f64) {
  // Beyond 1000 every tail has vanished.
  const double magnitude = std::min(1000.0, static_cast<double>(std::abs(x)));
  const bool at_limit = std::isinf(x) && x < 0;
  const Real z = 2 * std::sqrt(2 / std::numbers::pi_v<Real>) * x * (1 + 0.044715L * x * x);
  switch (op) {
    WEFT_UNARY(kElu, {x > 0 ? x : alpha * std::expm1(x), x > 0 ? 0.0 : 10.0, 1});
#define WEFT_LIBM(op, f, units, subnormals) WEFT_UNARY(op, {std::f(x), units, subnormals});
#include "kernels/unary/unary_libm.inc"
    WEFT_UNARY(kSigmoid, {sigmoid(x), 6, 1});
    WEFT_UNARY(kSoftplus,
               {std::isnan(x) ? x : std::fmax(x, 0) + std::log1p(std::exp(-std::abs(x))), 8, 1});
    WEFT_UNARY(kSilu, {at_limit ? 0 : x * sigmoid(x), 8, 1 + magnitude});
    WEFT_UNARY(kGeluErf, {at_limit ? 0 : x * std::erfc(x * -std::numbers::sqrt2_v<Real> / 2) / 2,
                          f64 ? 8 + 2 * magnitude * magnitude : 8, f64 ? 2 + magnitude : 2});
    case UnaryOp::kGeluTanh: {
      const double amplified = at_limit ? 0 : static_cast<double>(std::abs(z) * sigmoid(-z));
      return {at_limit ? 0 : x * sigmoid(z), 8 + 4 * amplified, 1 + magnitude};
    }
    default:
      WEFT_ASSERT(false);
  }
}

#undef WEFT_UNARY

bool is_exact(UnaryOp op) { return op <= UnaryOp::kHardswish || is_test(op); }

}  // namespace

std::vector<Expected> unary_reference(const UnaryProblem& p) {
  const DType type = arithmetic_type(p.x.dtype());
  const bool f64 = type == DType::f64;
  const double alpha = rounded_to(p.alpha, type);
  Expected expected;
  for (double x : p.x.to_vector()) {
    if (is_exact(p.op)) {
      const double value = rounded_to(exact(p.op, x, alpha, type), type);
      expected.add(as_stored(value, type, p.y.dtype()), 0);
      continue;
    }
    Approximate y = approximate(p.op, x, alpha, f64);
    y.units *= std::abs(y.value);
    const double value = static_cast<double>(y.value);
    const double stored = as_stored(value, DType::f64, p.y.dtype());
    if (std::isfinite(stored) && is_floating(p.y.dtype())) {
      expected.add(value, numerics::stored_bound(value, y.error(f64), p.y.dtype()));
    } else {
      expected.add(stored, 0);  // overflow, NaN, integers
    }
  }
  return {expected};
}

}  // namespace weft::kernels
