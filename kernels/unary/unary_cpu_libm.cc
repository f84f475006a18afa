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
#define WEFT_LOOP(op, f) \
  case UnaryOp::op:      \
    return is_f64 ? loop<double, f> : nullptr;
  switch (op) {
#define WEFT_VECTOR_LIBM(op, f, ...) WEFT_LOOP(op, std::f)
#define WEFT_LIBM(op, f, ...) \
  case UnaryOp::op:           \
    return is_f64 ? loop<double, std::f> : loop<float, std::f>;
#include "kernels/unary/unary_libm.inc"
    WEFT_LOOP(kSigmoid, sigmoid)
    WEFT_LOOP(kSoftplus, softplus)
    WEFT_LOOP(kSilu, silu)
    WEFT_LOOP(kGeluErf, gelu_erf)
    WEFT_LOOP(kGeluTanh, gelu_tanh)
    case UnaryOp::kElu:
      return is_f64 ? elu : nullptr;
    default:
      return nullptr;
  }
#undef WEFT_LOOP
}

}  // namespace weft::kernels
