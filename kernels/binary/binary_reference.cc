// Plain loops in f64, in long double where the result is f64.
//
// Exact: everything but pow, atan2 and the gradients is correctly rounded at each step of its
// definition (f32 arithmetic in f64 rounds as f32 does: 53 >= 2 * 24 + 2, Figueroa 1995), so
// equality is demanded; integers to 2^53.
//
// fmod, of which floor_divide and remainder are made, is exact in every library.
//
// pow is the C library's, 1 ULP; atan2 too, or that of kernels/simd/libm_inl.h, 2.2u, and CUDA's
// has at most 3 ULP. The gradients of sigmoid and tanh are three or four roundings. The others
// lose, in units u of f32's roundoff, what the steps of kernels/simd/math_inl.h lose; over every
// 17th of all 2^32 floats, on AVX-512, AVX2 and the baseline, the largest errors are below 8u of
// the sum of the derivative's terms, each taken positive, because where they cancel no relative
// accuracy is to be had. gelu_tanh's argument z is rounded to 3u of itself, which changes its
// sigmoid by |z| (1 - sigmoid(z)) as much. An exponential below 2^-126 has lost up to 2^-149, times
// its factor. The product with dy is one more rounding.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/binary/binary.h"
#include "kernels/elementwise/convert.h"
#include "kernels/elementwise/reference.h"
#include "numerics/error_bounds.h"

namespace weft::kernels {
namespace {

bool is_exact(BinaryOp op) {
  return op != BinaryOp::kPow && op != BinaryOp::kAtan2 && op < BinaryOp::kSigmoidGrad;
}

/// a - b floor(a / b), and the quotient that belongs to it, each step rounded.
double floor_remainder(double a, double b, DType type) {
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rounded_to(rest + b, type) : rest;
}
double floor_quotient(double a, double b, DType type) {
  const double quotient = a / b;
  if (b == 0) return quotient;
  const double rest = std::fmod(a, b);
  double whole = rounded_to(rounded_to(a - rest, type) / b, type);
  if (rest != 0 && (rest < 0) != (b < 0)) whole = rounded_to(whole - 1, type);
  if (whole == 0) return std::copysign(0.0, quotient);
  const double down = std::floor(whole);
  return rounded_to(whole - down, type) > 0.5 ? rounded_to(down + 1, type) : down;
}

/// A case of a switch over ops.
#define WEFT_BINARY(op, ...) \
  case BinaryOp::op:         \
    return __VA_ARGS__

double exact(BinaryOp op, double a, double b, double alpha, DType type) {
  switch (op) {
    WEFT_BINARY(kAdd, a + b);
    WEFT_BINARY(kAddScaled, a + rounded_to(alpha * b, type));
    WEFT_BINARY(kSub, a - b);
    WEFT_BINARY(kMul, a * b);
    WEFT_BINARY(kDiv, type == DType::i64 ? std::trunc(a / b) : a / b);
    WEFT_BINARY(kFloorDivide, floor_quotient(a, b, type));
    WEFT_BINARY(kRemainder, floor_remainder(a, b, type));
    WEFT_BINARY(kMaximum, std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b));
    WEFT_BINARY(kMinimum, std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b));
    WEFT_BINARY(kEq, a == b);
    WEFT_BINARY(kNe, a != b);
    WEFT_BINARY(kLt, a < b);
    WEFT_BINARY(kLe, a <= b);
    WEFT_BINARY(kGt, a > b);
    WEFT_BINARY(kGe, a >= b);
    WEFT_BINARY(kLogicalAnd, a != 0 && b != 0);
    WEFT_BINARY(kLogicalOr, a != 0 || b != 0);
    WEFT_BINARY(kLogicalXor, (a != 0) != (b != 0));
    WEFT_BINARY(kReluGrad, a > 0 ? b : 0);
    WEFT_BINARY(kLeakyReluGrad, a > 0 ? b : alpha * b);
    default:
      WEFT_ASSERT(false);
  }
}

Approximate approximate(BinaryOp op, Real a, Real b, bool f64) {
  // Beyond 1000 every tail has vanished.
  const Real x = std::clamp<Real>(a, -1000, 1000), magnitude = std::abs(x);
  switch (op) {
    WEFT_BINARY(kPow, {std::pow(a, b), 2 * std::abs(std::pow(a, b)), 1});
    WEFT_BINARY(kAtan2, {std::atan2(a, b), 8 * std::abs(std::atan2(a, b)), 1});
    WEFT_BINARY(kSigmoidGrad,
                {b * a * (1 - a), 4 * std::abs(b * a * (1 - a)), 2 + 2 * std::abs(b)});
    WEFT_BINARY(kTanhGrad, {b * (1 - a * a), 5 * std::abs(b * (1 - a * a)), 2 + 2 * std::abs(b)});
    case BinaryOp::kSiluGrad: {
      const Real s = sigmoid(x), terms = s * (1 + magnitude * sigmoid(-x));
      return {b * s * (1 + x * sigmoid(-x)), 8 * std::abs(b) * terms,
              1 + std::abs(b) * (1 + magnitude)};
    }
    case BinaryOp::kGeluErfGrad: {
      const Real cdf = std::erfc(x * -std::numbers::sqrt2_v<Real> / 2) / 2;
      const Real density =
          std::exp(-x * x / 2) * std::numbers::inv_sqrtpi_v<Real> / std::numbers::sqrt2_v<Real>;
      const Real amplified = f64 ? 1 + x * x : 1;  // f64's erfc and exp see a rounded argument
      return {b * (cdf + x * density), 8 * amplified * std::abs(b) * (cdf + magnitude * density),
              1 + std::abs(b) * (1 + magnitude)};
    }
    case BinaryOp::kGeluTanhGrad: {
      const Real k = 2 * std::sqrt(2 / std::numbers::pi_v<Real>);
      const Real z = k * x * (1 + 0.044715L * x * x), dz = k * (1 + 3 * 0.044715L * x * x);
      const Real s = sigmoid(z), rest = sigmoid(-z);
      const Real terms = s * (1 + std::abs(x * dz) * rest) * (1 + std::abs(z) * rest);
      return {b * s * (1 + x * dz * rest), 8 * std::abs(b) * terms,
              1 + std::abs(b) * (1 + std::abs(x * dz))};
    }
    default:
      WEFT_ASSERT(false);
  }
}

#undef WEFT_BINARY

double integer_power(double a, double b) {
  double result = 1;
  for (int i = 0; i < static_cast<int>(b); ++i) result *= a;
  return result;
}

}  // namespace

std::vector<Expected> binary_reference(const BinaryProblem& p) {
  const DType type = arithmetic_type(p.a.dtype(), p.b.dtype()), to = p.y.dtype();
  const bool f64 = type == DType::f64;
  const double alpha = rounded_to(p.alpha, type);
  const std::vector<double> a = p.a.to_vector(), b = p.b.to_vector();
  Expected expected;
  for (size_t i = 0; i < a.size(); ++i) {
    if (type == DType::i64 && p.op == BinaryOp::kPow) {
      expected.add(as_stored(integer_power(a[i], b[i]), type, to), 0);
    } else if (is_exact(p.op)) {
      const double value = rounded_to(exact(p.op, a[i], b[i], alpha, type), type);
      expected.add(as_stored(value, type, to), 0);
    } else {
      const Approximate y = approximate(p.op, a[i], b[i], f64);
      const double value = static_cast<double>(y.value);
      const double stored = as_stored(rounded_to(value, type), DType::f64, to);
      if (std::isfinite(stored)) {
        expected.add(value, numerics::stored_bound(value, y.error(f64), to));
      } else {
        expected.add(stored, 0);  // overflow and NaN
      }
    }
  }
  return {expected};
}

}  // namespace weft::kernels
