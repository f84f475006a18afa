// Transcendental functions one by one from the C library: f64 is for checking gradients, where
// accuracy counts and speed does not; and exp2 to atanh in f32 where an instruction set has no
// vector form of them (kernels/simd/libm_inl.h).
#include <cmath>
#include <numbers>

#include "kernels/unary/unary.h"

namespace weft::kernels {
namespace {

void elu(const void* source, void* target, int64_t n, double alpha) {
  const auto* const x = static_cast<const double*>(source);
  auto* const y = static_cast<double*>(target);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] > 0 ? x[i] : alpha * std::expm1(x[i]);
}

template <class T, T (*f)(T)>
void loop(const void* source, void* target, int64_t n, double) {
  const T* x = static_cast<const T*>(source);
  T* y = static_cast<T*>(target);
  for (int64_t i = 0; i < n; ++i) y[i] = f(x[i]);
}

double sigmoid(double x) {
  const double e = std::exp(-std::abs(x));
  return (x < 0 ? e : 1) / (1 + e);
}
double softplus(double x) {
  return std::isnan(x) ? x : std::fmax(x, 0) + std::log1p(std::exp(-std::abs(x)));
}
/// x times a factor that has vanished at -inf.
double times(double x, double factor) { return std::isinf(x) && x < 0 ? -0.0 : x * factor; }
double silu(double x) { return times(x, sigmoid(x)); }
double gelu_erf(double x) { return times(x, 0.5 * std::erfc(x * -std::numbers::sqrt2 / 2)); }
double gelu_tanh(double x) {
  constexpr double kFactor = 2 * 0.79788456080286535588;  // 2 sqrt(2 / pi)
  return times(x, sigmoid(kFactor * x * (1 + 0.044715 * x * x)));
}

}  // namespace

UnaryLoop unary_libm_loop(UnaryOp op, DType type) {
  if (type == DType::bf16 || type == DType::i64) return nullptr;
  const bool is_f64 = type == DType::f64;
#define WEFT_LIBM(op, f) \
  case UnaryOp::op:      \
    return is_f64 ? loop<double, f> : loop<float, f>
  switch (op) {
    WEFT_LIBM(kExp2, std::exp2);
    WEFT_LIBM(kLog2, std::log2);
    WEFT_LIBM(kLog10, std::log10);
    WEFT_LIBM(kSin, std::sin);
    WEFT_LIBM(kCos, std::cos);
    WEFT_LIBM(kTan, std::tan);
    WEFT_LIBM(kAsin, std::asin);
    WEFT_LIBM(kAcos, std::acos);
    WEFT_LIBM(kAtan, std::atan);
    WEFT_LIBM(kSinh, std::sinh);
    WEFT_LIBM(kCosh, std::cosh);
    WEFT_LIBM(kAsinh, std::asinh);
    WEFT_LIBM(kAcosh, std::acosh);
    WEFT_LIBM(kAtanh, std::atanh);
    default:
      break;
  }
#undef WEFT_LIBM
  if (!is_f64) return nullptr;
#define WEFT_LIBM(op, f) \
  case UnaryOp::op:      \
    return loop<double, f>
  switch (op) {
    WEFT_LIBM(kExp, std::exp);
    WEFT_LIBM(kExpm1, std::expm1);
    WEFT_LIBM(kLog, std::log);
    WEFT_LIBM(kLog1p, std::log1p);
    WEFT_LIBM(kTanh, std::tanh);
    WEFT_LIBM(kErf, std::erf);
    WEFT_LIBM(kSigmoid, sigmoid);
    WEFT_LIBM(kSoftplus, softplus);
    WEFT_LIBM(kSilu, silu);
    WEFT_LIBM(kGeluErf, gelu_erf);
    WEFT_LIBM(kGeluTanh, gelu_tanh);
    case UnaryOp::kElu:
      return elu;
    default:
      return nullptr;
  }
#undef WEFT_LIBM
}

}  // namespace weft::kernels
