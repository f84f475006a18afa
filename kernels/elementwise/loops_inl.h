// Loops over blocks of elements, one per function and arithmetic type: what the elementwise kernels
// of one and of two operands are made of. Included once per Highway target, as convert_inl.h is.
//
//   using Loops = ElementLoops<const void*, const void*>;  // of two operands
//   case BinaryOp::kAdd:
//     return Loops::plain(type, [](auto a, auto b, auto) { return wrapping(a) + wrapping(b); });

// Per-target include guard, as Highway's own -inl headers have.
#if defined(WEFT_KERNELS_ELEMENTWISE_LOOPS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_ELEMENTWISE_LOOPS_INL_H
#undef WEFT_KERNELS_ELEMENTWISE_LOOPS_INL_H
#else
#define WEFT_KERNELS_ELEMENTWISE_LOOPS_INL_H
#endif

#include <hwy/highway.h>

#include <type_traits>

#include "core/dtype.h"
#include "kernels/simd/rows_inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {

/// A number to add, subtract or multiply: integers wrap around.
template <class T>
HWY_INLINE auto wrapping(T x) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<uint64_t>(x);
  else
    return x;
}

/// y[i] = f(x[i]..., alpha), for i < n, f being F's only value. T is the type of the arithmetic, or
/// bf16, whose arithmetic is in float; where f gives bool, y is bool.
template <class F, class T, class... X>
HWY_INLINE void compute_numbers(void* target, int64_t n, double factor, const X*... x) {
  using Number = std::conditional_t<std::is_same_v<T, bf16>, float, T>;
  const Number alpha = static_cast<Number>(factor);
  using Value = decltype(F{}(static_cast<Number>(*x)..., alpha));
  using Result = std::conditional_t<std::is_same_v<Value, bool>, bool, T>;
  Result* y = static_cast<Result*>(target);
  // y is one of x or apart from them: every element depends on its own place only.
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    y[i] = static_cast<Result>(F{}(static_cast<Number>(x[i])..., alpha));
  }
}

/// A function of floats, in vectors.
using VectorFunction = hn::Vec<F32> (*)(F32, hn::Vec<F32>);

/// y[i] = f(x[i]) of elements of bf16 or f16.
template <VectorFunction f, class T>
HWY_INLINE void compute_narrow_vectors(T* y, int64_t n, const T* x) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) store_f32(d, f(d, load_f32(d, x + i)), y + i);
  if (i < n) store_f32_n(d, f(d, load_f32_n(d, x + i, n - i)), y + i, n - i);
}

/// y[i] = f(x[i]), times the factors' elements.
template <VectorFunction f, class... Factors>
HWY_INLINE void compute_vectors(float* y, int64_t n, const float* x, const Factors*... factors) {
  const F32 d;
  for_each_vector(d, n, [&](size_t i, size_t m) HWY_ATTR {
    auto v = f(d, load_part(d, x + i, m));
    ((v = hn::Mul(v, load_part(d, factors + i, m))), ...);
    store_part(d, v, y + i, m);
  });
}

/// The loops of operands given as Source..., each of them const void*.
template <class... Source>
struct ElementLoops {
  using Loop = void (*)(Source... x, void* y, int64_t n, double alpha);

  template <class F, class T>
  static void numbers(Source... x, void* y, int64_t n, double alpha) {
    compute_numbers<F, T>(y, n, alpha, static_cast<const T*>(x)...);
  }
  /// Of f32: f of the first operand, times the others, as a derivative is times the gradient.
  template <VectorFunction f>
  static void vectors(Source... x, void* y, int64_t n, double) {
    compute_vectors<f>(static_cast<float*>(y), n, static_cast<const float*>(x)...);
  }

  /// Of bf16 as it lies in memory.
  template <VectorFunction f>
  static void bf16_vectors(Source... x, void* y, int64_t n, double) {
    compute_narrow_vectors<f>(static_cast<bf16*>(y), n, static_cast<const bf16*>(x)...);
  }

  /// The loop of a lambda without captures for a type of arithmetic, or bf16.
  template <class F>
  static Loop plain(DType type, F f) {
    return type == DType::i64 ? numbers<F, int64_t> : floating(type, f);
  }
  template <class F>
  static Loop floating(DType type, F) {
    if (type == DType::f64) return numbers<F, double>;
    return type == DType::bf16 ? numbers<F, bf16> : numbers<F, float>;
  }
};

}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
