// Blocks of 1024 elements in the arithmetic type (kernels/elementwise), one loop per op and type;
// arithmetic on bf16 alone skips the conversion of whole blocks.
// Memory-bound for arithmetic and, on AVX-512, nearly so for exp and GELU in f32.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/unary/unary_cpu_blocks.cc"
#include "core/simd/targets.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/elementwise/block_io.h"
#include "kernels/elementwise/loops_inl.h"
#include "kernels/simd/math_inl.h"
#include "kernels/unary/unary.h"
#include "kernels/unary/unary_loops.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

using Loops = ElementLoops<const void*>;

/// The loop of a function that leaves integers as they are.
template <class F>
UnaryLoop rounding(DType type, F f) {
  if (type != DType::i64) return Loops::floating(type, f);
  return Loops::plain(type, [](auto x, auto) { return x; });
}

template <class T>
HWY_INLINE T magnitude(T x) {
  if constexpr (std::is_integral_v<T>)
    return x < 0 ? static_cast<T>(-wrapping(x)) : x;
  else
    return std::abs(x);
}

/// Whether |x| is infinite, which no integer is.
template <class T>
HWY_INLINE bool is_infinite(T x) {
  using Limits = std::numeric_limits<T>;
  return Limits::has_infinity && magnitude(x) == Limits::infinity();
}

/// The loop of an op; of bf16 none where the arithmetic is worth more than the conversion.
UnaryLoop unary_loop(UnaryOp op, DType type) {
  if (UnaryLoop loop = unary_libm_loop(op, type)) return loop;
  switch (op) {
    case UnaryOp::kNeg:
      return Loops::plain(type, [](auto x, auto) { return -wrapping(x); });
    case UnaryOp::kAbs:
      return Loops::plain(type, [](auto x, auto) { return magnitude(x); });
    case UnaryOp::kSign:
      return Loops::plain(type, [](auto x, auto) { return x > 0 ? 1 : x < 0 ? -1 : x; });
    case UnaryOp::kSquare:
      return Loops::plain(type, [](auto x, auto) { return wrapping(x) * wrapping(x); });
    case UnaryOp::kRelu:
      return Loops::plain(type, [](auto x, auto) { return x < 0 ? 0 : x; });
    case UnaryOp::kFloor:
      return rounding(type, [](auto x, auto) { return std::floor(x); });
    case UnaryOp::kCeil:
      return rounding(type, [](auto x, auto) { return std::ceil(x); });
    case UnaryOp::kRound:
      return rounding(type, [](auto x, auto) { return std::nearbyint(x); });
    case UnaryOp::kTrunc:
      return rounding(type, [](auto x, auto) { return std::trunc(x); });
    case UnaryOp::kScale:
      return Loops::plain(type, [](auto x, auto alpha) { return wrapping(x) * wrapping(alpha); });
    case UnaryOp::kShift:
      return Loops::plain(type, [](auto x, auto alpha) { return wrapping(x) + wrapping(alpha); });
    case UnaryOp::kLeakyRelu:
      return Loops::floating(type, [](auto x, auto alpha) { return x > 0 ? x : alpha * x; });
    case UnaryOp::kReciprocal:
      return Loops::floating(type, [](auto x, auto) { return 1 / x; });
    case UnaryOp::kSqrt:
      return Loops::floating(type, [](auto x, auto) { return std::sqrt(x); });
    case UnaryOp::kRsqrt:
      return Loops::floating(type, [](auto x, auto) { return 1 / std::sqrt(x); });
    case UnaryOp::kLogicalNot:
      return Loops::plain(type, [](auto x, auto) { return x == 0; });
    case UnaryOp::kIsNan:
      return Loops::plain(type, [](auto x, auto) { return x != x; });
    case UnaryOp::kIsInf:
      return Loops::plain(type, [](auto x, auto) { return is_infinite(x); });
    case UnaryOp::kIsFinite:
      return Loops::plain(type, [](auto x, auto) { return x == x && !is_infinite(x); });
    default:
      break;
  }
  if (type == DType::bf16) return nullptr;
  switch (op) {
    case UnaryOp::kExp:
      return Loops::vectors<exp_f32>;
    case UnaryOp::kExpm1:
      return Loops::vectors<expm1_f32>;
    case UnaryOp::kLog:
      return Loops::vectors<log_f32>;
    case UnaryOp::kLog1p:
      return Loops::vectors<log1p_f32>;
    case UnaryOp::kTanh:
      return Loops::vectors<tanh_f32>;
    case UnaryOp::kErf:
      return Loops::vectors<erf_f32>;
    case UnaryOp::kSigmoid:
      return Loops::vectors<sigmoid_f32>;
    case UnaryOp::kSoftplus:
      return Loops::vectors<softplus_f32>;
    case UnaryOp::kSilu:
      return Loops::vectors<silu_f32>;
    case UnaryOp::kGeluErf:
      return Loops::vectors<gelu_erf_f32>;
    case UnaryOp::kGeluTanh:
      return Loops::vectors<gelu_tanh_f32>;
    default:
      WEFT_ASSERT(false);
  }
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(unary_loop);

void unary_cpu_blocks(const UnaryProblem& p) {
  const auto loop_of = [&](DType type) { return HWY_DYNAMIC_DISPATCH(unary_loop)(p.op, type); };
  const bool is_bf16 = p.x.dtype() == DType::bf16 && (p.y.dtype() == DType::bf16 || is_test(p.op));
  DType type = is_bf16 ? DType::bf16 : arithmetic_type(p.x.dtype());
  UnaryLoop loop = loop_of(type);
  if (!loop) loop = loop_of(type = DType::f32);
  const Walk walk({p.y, p.x});
  transform_blocks(walk, {p.y, is_test(p.op) ? DType::boolean : type}, {{p.x, type}},
                   [&](const void* x, void* y, int64_t n) { loop(x, y, n, p.alpha); });
}

}  // namespace weft::kernels
#endif
