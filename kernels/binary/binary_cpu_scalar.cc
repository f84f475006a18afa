// Functions of two numbers one by one: pow and atan2 from the C library and what is made of its
// fmod, the last two where an instruction set has no vector form of them (kernels/simd/libm_inl.h);
// integers' divisions and powers with their errors; and f64's gradients, where accuracy counts and
// speed does not.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/binary/binary.h"

namespace weft::kernels {
namespace {

int64_t divide(int64_t a, int64_t b) {
  WEFT_CHECK(b != 0, "div: integer division of {} by zero", a);
  // The one quotient that overflows, of the smallest number and -1, wraps around.
  if (b == -1) return static_cast<int64_t>(0 - static_cast<uint64_t>(a));
  return a / b;
}

int64_t floor_divide(int64_t a, int64_t b) {
  WEFT_CHECK(b != 0, "floor_divide: integer division of {} by zero", a);
  const int64_t quotient = divide(a, b);
  return b != -1 && a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t remainder(int64_t a, int64_t b) {
  WEFT_CHECK(b != 0, "remainder: integer division of {} by zero", a);
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

/// fmod is exact; the sum with b rounds once.
template <class T>
T remainder(T a, T b) {
  const T rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

/// The quotient of what is left when the remainder is taken away: an integer but for its rounding.
template <class T>
T floor_divide(T a, T b) {
  if (b == 0) return a / b;
  const T rest = std::fmod(a, b);
  T whole = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) whole -= 1;
  if (whole == 0) return std::copysign(T{0}, a / b);
  const T down = std::floor(whole);
  return whole - down > T{0.5} ? down + 1 : down;
}

int64_t power(int64_t a, int64_t b) {
  WEFT_CHECK(b >= 0, "pow: an integer has no negative integer power, got {}^{}", a, b);
  uint64_t result = 1;
  for (uint64_t base = static_cast<uint64_t>(a); b > 0; b >>= 1, base *= base) {
    if (b & 1) result *= base;
  }
  return static_cast<int64_t>(result);
}

/// exp(-|x|) and its sigmoids: 1 / (1 + exp(-x)) and 1 minus that, both without cancellation.
struct Sigmoids {
  explicit Sigmoids(double x) {
    const double e = std::exp(-std::abs(x));
    sigmoid = (x < 0 ? e : 1) / (1 + e);
    complement = (x < 0 ? 1 : e) / (1 + e);
  }
  double sigmoid, complement;
};

// Derivatives that are 1 or 0 beyond the bounds to which x is kept; NaN passes through clamp.
double silu_grad(double x, double dy) {
  x = std::clamp(x, -800.0, 800.0);
  const Sigmoids s(x);
  return dy * s.sigmoid * (1 + x * s.complement);
}
double gelu_erf_grad(double x, double dy) {
  x = std::clamp(x, -40.0, 40.0);
  constexpr double kDensity = std::numbers::inv_sqrtpi / std::numbers::sqrt2;
  return dy *
         (0.5 * std::erfc(x * -std::numbers::sqrt2 / 2) + kDensity * x * std::exp(-0.5 * x * x));
}
double gelu_tanh_grad(double x, double dy) {
  x = std::clamp(x, -40.0, 40.0);
  constexpr double kFactor = 2 * 0.79788456080286535588;  // 2 sqrt(2 / pi)
  const Sigmoids s(kFactor * x * (1 + 0.044715 * x * x));
  return dy * s.sigmoid * (1 + kFactor * x * (1 + 3 * 0.044715 * x * x) * s.complement);
}

template <class T, T (*f)(T, T)>
void loop(const void* left, const void* right, void* target, int64_t n, double) {
  const T* a = static_cast<const T*>(left);
  const T* b = static_cast<const T*>(right);
  T* y = static_cast<T*>(target);
  for (int64_t i = 0; i < n; ++i) y[i] = f(a[i], b[i]);
}

}  // namespace

BinaryLoop binary_scalar_loop(BinaryOp op, DType type) {
  if (type == DType::bf16) return nullptr;
  const auto of = [type](BinaryLoop f64, BinaryLoop f32, BinaryLoop i64) {
    return type == DType::f64 ? f64 : type == DType::f32 ? f32 : i64;
  };
  switch (op) {
    case BinaryOp::kPow:
      return of(loop<double, std::pow>, loop<float, std::pow>, loop<int64_t, power>);
    case BinaryOp::kFloorDivide:
      return of(loop<double, floor_divide<double>>, loop<float, floor_divide<float>>,
                loop<int64_t, floor_divide>);
    case BinaryOp::kRemainder:
      return of(loop<double, remainder<double>>, loop<float, remainder<float>>,
                loop<int64_t, remainder>);
    case BinaryOp::kAtan2:
      return of(loop<double, std::atan2>, loop<float, std::atan2>, nullptr);
    case BinaryOp::kDiv:
      return of(nullptr, nullptr, loop<int64_t, divide>);
    case BinaryOp::kSiluGrad:
      return of(loop<double, silu_grad>, nullptr, nullptr);
    case BinaryOp::kGeluErfGrad:
      return of(loop<double, gelu_erf_grad>, nullptr, nullptr);
    case BinaryOp::kGeluTanhGrad:
      return of(loop<double, gelu_tanh_grad>, nullptr, nullptr);
    default:
      return nullptr;
  }
}

}  // namespace weft::kernels
