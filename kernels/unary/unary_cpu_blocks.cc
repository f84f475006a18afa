// Blocks of 1024 elements in the arithmetic type (kernels/elementwise), one loop per op and type;
// arithmetic on bf16 alone skips the conversion of whole blocks.
// Memory-bound for arithmetic and, on AVX-512, nearly so for exp, GELU and atan in f32.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/unary/unary_cpu_blocks.cc"
#include "core/simd/targets_inl.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/elementwise/block_io.h"
#include "kernels/elementwise/loops_inl.h"
#include "kernels/simd/libm_inl.h"
#include "kernels/simd/math_inl.h"
#include "kernels/unary/unary.h"

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

/// min(max(x + 3, 0), 6); NaN stays NaN.
template <class T>
HWY_INLINE T hardswish_gate(T x) {
  const T shifted = x + 3;
  return shifted < 0 ? 0 : shifted > 6 ? 6 : shifted;
}

/// Whether |x| is infinite, which no integer is.
template <class T>
HWY_INLINE bool is_infinite(T x) {
  using Limits = std::numeric_limits<T>;
  return Limits::has_infinity && magnitude(x) == Limits::infinity();
}

/// x > 0 ? x : alpha (exp(x) - 1), of f32.
void elu_loop(const void* source, void* target, int64_t n, double factor) {
  const F32 d;
  const auto* const x = static_cast<const float*>(source);
  auto* const y = static_cast<float*>(target);
  const auto alpha = hn::Set(d, static_cast<float>(factor));
  for_each_vector(d, n, [&](size_t i, size_t m) HWY_ATTR {
    const auto v = load_part(d, x + i, m);
    const auto curve = hn::Mul(alpha, expm1_f32(d, v));
    store_part(d, hn::IfThenElse(hn::Gt(v, hn::Zero(d)), v, curve), y + i, m);
  });
}

/// A case of a switch over ops: the loop of f(x, alpha), and the vector loop of f.
#define WEFT_UNARY(op, loop_of, f) \
  case UnaryOp::op:                \
    return loop_of(type, [](auto x, [[maybe_unused]] auto alpha) { return f; })
#define WEFT_VECTORS(op, f) \
  case UnaryOp::op:         \
    return Loops::vectors<f>

/// The loop of those of C's functions that have vectors of f32; null for others.
UnaryLoop vector_libm_loop([[maybe_unused]] UnaryOp op, [[maybe_unused]] DType type) {
#if HWY_NATIVE_FMA
  if (type != DType::f32) return nullptr;
  switch (op) {
#define WEFT_VECTOR_LIBM(...)
#define WEFT_LIBM(op, f, ...) WEFT_VECTORS(op, f##_f32);
#include "kernels/unary/unary_libm.inc"
    default:
      break;
  }
#endif
  return nullptr;
}

/// The loop of an op; of bf16 none where the arithmetic is worth more than the conversion.
UnaryLoop unary_loop(UnaryOp op, DType type) {
  if (UnaryLoop loop = vector_libm_loop(op, type)) return loop;
  if (UnaryLoop loop = unary_libm_loop(op, type)) return loop;
  switch (op) {
    WEFT_UNARY(kNeg, Loops::plain, -wrapping(x));
    WEFT_UNARY(kAbs, Loops::plain, magnitude(x));
    WEFT_UNARY(kSign, Loops::plain, x > 0 ? 1 : x < 0 ? -1 : x);
    WEFT_UNARY(kSquare, Loops::plain, wrapping(x) * wrapping(x));
    WEFT_UNARY(kRelu, Loops::plain, x < 0 ? 0 : x);
    WEFT_UNARY(kFloor, rounding, std::floor(x));
    WEFT_UNARY(kCeil, rounding, std::ceil(x));
    WEFT_UNARY(kRound, rounding, std::nearbyint(x));
    WEFT_UNARY(kTrunc, rounding, std::trunc(x));
    WEFT_UNARY(kScale, Loops::plain, wrapping(x) * wrapping(alpha));
    WEFT_UNARY(kShift, Loops::plain, wrapping(x) + wrapping(alpha));
    WEFT_UNARY(kLeakyRelu, Loops::floating, x > 0 ? x : alpha * x);
    WEFT_UNARY(kReciprocal, Loops::floating, 1 / x);
    WEFT_UNARY(kSqrt, Loops::floating, std::sqrt(x));
    WEFT_UNARY(kRsqrt, Loops::floating, 1 / std::sqrt(x));
    WEFT_UNARY(kHardswish, Loops::floating, x * hardswish_gate(x) / 6);
    WEFT_UNARY(kLogicalNot, Loops::plain, x == 0);
    WEFT_UNARY(kIsNan, Loops::plain, x != x);
    WEFT_UNARY(kIsInf, Loops::plain, is_infinite(x));
    WEFT_UNARY(kIsFinite, Loops::plain, bool((x == x) & !is_infinite(x)));
    default:
      break;
  }
  if (type == DType::bf16) {
    const bool is_cheap = HWY_TARGET == HWY_AVX3 && op == UnaryOp::kGeluErf;
    return is_cheap ? Loops::bf16_vectors<gelu_erf_f32> : nullptr;
  }
  switch (op) {
#define WEFT_VECTOR_LIBM(op, f, ...) WEFT_VECTORS(op, f##_f32);
#define WEFT_LIBM(...)
#include "kernels/unary/unary_libm.inc"
    WEFT_VECTORS(kSigmoid, sigmoid_f32);
    WEFT_VECTORS(kSoftplus, softplus_f32);
    WEFT_VECTORS(kSilu, silu_f32);
    WEFT_VECTORS(kGeluErf, gelu_erf_f32);
    WEFT_VECTORS(kGeluTanh, gelu_tanh_f32);
    case UnaryOp::kElu:
      return elu_loop;
    default:
      WEFT_ASSERT(false);
  }
}

#undef WEFT_UNARY
#undef WEFT_VECTORS

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(unary_loop);

UnaryBlocks unary_blocks(UnaryOp op, DType x, DType y) {
  const auto loop_of = [&](DType type) { return HWY_DYNAMIC_DISPATCH(unary_loop)(op, type); };
  const bool is_bf16 = x == DType::bf16 && (y == DType::bf16 || is_test(op));
  DType type = is_bf16 ? DType::bf16 : arithmetic_type(x);
  UnaryLoop loop = loop_of(type);
  if (!loop) loop = loop_of(type = DType::f32);
  return {loop, type, is_test(op) ? DType::boolean : type};
}

void unary_cpu_blocks(const UnaryProblem& p) {
  const UnaryBlocks blocks = unary_blocks(p.op, p.x.dtype(), p.y.dtype());
  const Walk walk({p.y, p.x});
  transform_blocks(walk, {p.y, blocks.result}, {{p.x, blocks.type}},
                   [&](const void* x, void* y, int64_t n) { blocks.loop(x, y, n, p.alpha); });
}

}  // namespace weft::kernels
#endif
