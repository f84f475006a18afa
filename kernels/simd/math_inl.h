// Elementary functions on vectors of floats: exp log erf sigmoid GELU and their gradients, with
// special values and relative accuracy in the tails. Included as convert_inl.h is.
//
// The references of kernels/unary and kernels/binary state each function's error bound.
//
// log log1p expm1 and f64's exp are Highway's (hwy/contrib/math), which leaves NaN, infinities and
// overflow undefined (1.0.3's Exp gives 0 for NaN); here they are IEEE's. f32's exp takes 15
// instructions with AVX-512, where Highway's takes 36.

#if defined(WEFT_KERNELS_SIMD_MATH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_SIMD_MATH_INL_H
#undef WEFT_KERNELS_SIMD_MATH_INL_H
#else
#define WEFT_KERNELS_SIMD_MATH_INL_H
#endif

#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>
#include <limits>
#include <type_traits>

#include "kernels/simd/normal_tail.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr float kFloatInf = std::numeric_limits<float>::infinity();

/// y, but x where x is NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V keep_nan(D, V x, V y) {
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

/// c[0] + c[1] t + c[2] t^2 + ...
template <class D, class V, size_t n>
HWY_INLINE V polynomial(D d, V t, const float (&c)[n]) {
  V p = hn::Set(d, c[n - 1]);
  for (size_t k = n - 1; k-- > 0;) p = hn::MulAdd(p, t, hn::Set(d, c[k]));
  return p;
}

/// 2^n for n in [-126, 127].
template <class D, class I>
HWY_INLINE hn::Vec<D> power_of_two(D d, I n) {
  const hn::RebindToSigned<D> di;
  return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
}

/// y 2^n, rounded once, for a y near 1 and a whole number n in [-252, 254].
template <class D, class V>
HWY_INLINE V times_power_of_two(D d, V y, V n) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (sizeof(V) == 64) return V{_mm512_scalef_ps(y.raw, n.raw)};
#endif
  // Of the two steps only the second may round.
  const hn::RebindToSigned<D> di;
  const auto whole = hn::ConvertTo(di, n);
  const auto half = hn::ShiftRight<1>(whole);
  return hn::Mul(hn::Mul(y, power_of_two(d, half)), power_of_two(d, hn::Sub(whole, half)));
}

/// x held within [low, high]; NaN stays.
template <class D, class V>
HWY_INLINE V clamp_f32(D d, V x, float low, float high) {
  const V y = hn::Min(hn::Set(d, high), hn::Max(hn::Set(d, low), x));
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return y;  // the minimum and the maximum are their second operand where one is NaN
#else
  return keep_nan(d, x, y);
#endif
}

/// exp(x) = fraction 2^exponent.
template <class V>
struct Exponential {
  V fraction, exponent;
};

/// Of an x in [-104, 89], or NaN. exponent is x / log(2) rounded to a whole number.
template <class D, class V>
HWY_INLINE Exponential<V> exponential_f32(D d, V x) {
  // (exp(t) - 1 - t) / t^2 on [-log(2) / 2, log(2) / 2], 2^-28.2.
  constexpr float kC[] = {0x1.fffffcp-2f, 0x1.55548cp-3f, 0x1.555858p-5f, 0x1.123decp-7f,
                          0x1.6ac880p-10f};
  // A sum of this size is a whole number.
  const V large = hn::Set(d, 0x1.8p23f);
  const V n = hn::Sub(hn::MulAdd(x, hn::Set(d, 0x1.715476p+0f), large), large);
  // log(2) in two parts, the first of 15 bits.
  const V t =
      hn::NegMulAdd(n, hn::Set(d, 0x1.7f7d1cp-20f), hn::NegMulAdd(n, hn::Set(d, 0x1.62e4p-1f), x));
  const V y = hn::Add(hn::Set(d, 1.0f), hn::MulAdd(hn::Mul(t, t), polynomial(d, t, kC), t));
  return {y, n};
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_f32(D d, V x) {
  // Beyond the bounds lie 0 and infinity.
  const Exponential<V> e = exponential_f32(d, clamp_f32(d, x, -104.0f, 89.0f));
  return times_power_of_two(d, e.fraction, e.exponent);
}

/// exp(x) of f32 or f64; of f64 with Highway's relative error of 1 ulp, and 0 below the normal
/// range.
template <class D, class V>
HWY_INLINE V exp_or_nan(D d, V x) {
  if constexpr (std::is_same_v<hn::TFromD<D>, float>) {
    return exp_f32(d, x);
  } else {
    return keep_nan(d, x, hn::Exp(d, x));
  }
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V expm1_f32(D d, V x) {
  const V y = hn::IfThenElse(hn::Gt(x, hn::Set(d, 89.0f)), hn::Set(d, kFloatInf), hn::Expm1(d, x));
  return keep_nan(d, x, hn::IfThenElse(hn::Eq(x, hn::Zero(d)), x, y));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V log_f32(D d, V x) {
  const V zero = hn::Zero(d), inf = hn::Set(d, kFloatInf);
  V y = hn::IfThenElse(hn::Lt(x, inf), hn::Log(d, x), x);  // inf and NaN stay
  y = hn::IfThenElse(hn::Eq(x, zero), hn::Neg(inf), y);
  return hn::IfThenElse(hn::Lt(x, zero), hn::Set(d, std::numeric_limits<float>::quiet_NaN()), y);
}

/// log(1 + x): log(y) of the rounded y = 1 + x, times x / (y - 1), which makes up for the rounding.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V log1p_f32(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V y = hn::Add(one, x);
  const V moved = hn::Sub(y, one);
  const auto is_plain =
      hn::Or(hn::Eq(moved, hn::Zero(d)), hn::Not(hn::Lt(y, hn::Set(d, kFloatInf))));
  const V ratio = hn::Div(x, hn::IfThenElse(is_plain, one, moved));
  const V result =
      hn::IfThenElse(hn::Eq(y, hn::Zero(d)), log_f32(d, y), hn::Mul(log_f32(d, y), ratio));
  return hn::IfThenElse(hn::Eq(moved, hn::Zero(d)), x,
                        hn::IfThenElse(is_plain, log_f32(d, y), result));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V tanh_f32(D d, V x) {
  // (tanh(z) / z - 1) / z^2 by z^2 on [0, 5/8], 2^-27.7 of tanh(z) / z (Remez, 45 digits).
  constexpr float kC[] = {-0x1.555532p-2f, 0x1.1106f6p-3f, -0x1.b835a4p-5f, 0x1.51f914p-6f,
                          -0x1.75100cp-8f};
  const V one = hn::Set(d, 1.0f), z = hn::Abs(x), square = hn::Mul(z, z);
  const V near = hn::MulAdd(hn::Mul(z, square), polynomial(d, square, kC), z);
  const V e = exp_f32(d, hn::Add(z, z));
  const V far = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(e, one)));
  return hn::CopySign(hn::IfThenElse(hn::Lt(z, hn::Set(d, 0.625f)), near, far), x);
}

/// exp(-t^2 / 2) for t in [0, 16]. The square is split into an exact part and a rest, so that its
/// rounding, 128 u at t = 16, does not reach the result.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V gaussian_f32(D d, V t) {
  const hn::RebindToUnsigned<D> du;
  const V half = hn::Set(d, -0.5f);
  const V high = hn::BitCast(d, hn::And(hn::BitCast(du, t), hn::Set(du, 0xfffff000u)));
  const V exact = hn::Mul(half, hn::Mul(high, high));
  const V small = hn::Mul(half, hn::Mul(hn::Sub(t, high), hn::Add(t, high)));
  const V sum = hn::Add(exact, small);
  const V rest = hn::Sub(small, hn::Sub(sum, exact));
  const V e = exp_f32(d, sum);
  return hn::MulAdd(e, rest, e);
}

/// Q(t) = exp(t^2 / 2) P(T > t) for a standard normal T: the normal tail without its exponential.
/// t >= 0. With s = (t - 4) / (t + 4), Q (t + 4) is a polynomial in s: the minimax one of degree 9
/// (Remez, 50 digits) for t in [0, 16] has relative error 2^-26.5, 2^-24.9 with float coefficients.
/// The substitution is Shepherd and Laframboise's, "Chebyshev approximation of (1 + 2x) exp(x^2)
/// erfc x", Mathematics of Computation 36, 1981.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V normal_tail_f32(D d, V t) {
  constexpr float kC[] = {0x1.82b4bcp-1f,  -0x1.373e38p-1f, 0x1.8c6da2p-2f,  -0x1.7e0050p-3f,
                          0x1.eed1c4p-5f,  -0x1.ecf572p-8f, -0x1.cb8472p-9f, 0x1.9a9b70p-10f,
                          0x1.5da780p-13f, -0x1.21914cp-13f};
  const V four = hn::Set(d, 4.0f);
  const V r = hn::Div(hn::Set(d, 1.0f), hn::Add(t, four));
  const V s = hn::Mul(hn::Sub(t, four), r);
  V p = hn::Set(d, kC[9]);
  for (int k = 8; k >= 0; --k) p = hn::MulAdd(p, s, hn::Set(d, kC[k]));
  return hn::Mul(p, r);
}

/// Below 1/2 the Taylor series x (2 / sqrt pi) sum (-x^2)^n / (n! (2n + 1)) up to n = 6; it
/// alternates, so its relative error is below the next term, 2^-30. From 1/2 on 1 - 2 P(T > x sqrt
/// 2).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V erf_f32(D d, V x) {
  constexpr float kC[] = {1.12837917f,    -0.376126389f,   0.112837917f,  -0.0268661707f,
                          5.22397762e-3f, -8.54832702e-4f, 1.20553331e-4f};
  const V z = hn::Mul(x, x);
  V p = hn::Set(d, kC[6]);
  for (int k = 5; k >= 0; --k) p = hn::MulAdd(p, z, hn::Set(d, kC[k]));
  const V near = hn::Mul(x, p);
  const V t = hn::Min(hn::Mul(hn::Abs(x), hn::Set(d, 1.41421356f)), hn::Set(d, 16.0f));
  const V tail = hn::Mul(gaussian_f32(d, t), normal_tail_f32(d, t));
  const V far = hn::CopySign(hn::NegMulAdd(hn::Set(d, 2.0f), tail, hn::Set(d, 1.0f)), x);
  const V y = hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(d, 0.5f)), near, far);
  return keep_nan(d, x, y);
}

template <class V>
struct Sigmoids {
  V sigmoid, complement;
};

/// 1 / (1 + exp(-x)) and 1 minus that, both to full relative accuracy; not for NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE Sigmoids<V> sigmoids_f32(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V e = exp_f32(d, hn::Neg(hn::Abs(x)));
  const V larger = hn::Div(one, hn::Add(one, e));
  const V smaller = hn::Mul(e, larger);
  const auto is_negative = hn::Lt(x, hn::Zero(d));
  return {hn::IfThenElse(is_negative, smaller, larger),
          hn::IfThenElse(is_negative, larger, smaller)};
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V sigmoid_f32(D d, V x) {
  return keep_nan(d, x, sigmoids_f32(d, x).sigmoid);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V softplus_f32(D d, V x) {
  const V e = exp_f32(d, hn::Neg(hn::Abs(x)));
  return keep_nan(d, x, hn::Add(hn::Max(x, hn::Zero(d)), log1p_f32(d, e)));
}

/// x, but the largest finite number instead of -inf: its product with a vanished factor is -0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V without_negative_infinity(D d, V x) {
  return hn::Max(x, hn::Set(d, std::numeric_limits<float>::lowest()));
}

/// f(-inf) = -0, the limit.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V silu_f32(D d, V x) {
  return keep_nan(d, x, hn::Mul(without_negative_infinity(d, x), sigmoids_f32(d, x).sigmoid));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V silu_derivative_f32(D d, V x) {
  // Beyond +-110 the derivative is 1 or 0.
  const V bounded = hn::Max(hn::Min(x, hn::Set(d, 110.0f)), hn::Set(d, -110.0f));
  const Sigmoids<V> s = sigmoids_f32(d, bounded);
  const V factor = hn::MulAdd(bounded, s.complement, hn::Set(d, 1.0f));
  return keep_nan(d, x, hn::Mul(s.sigmoid, factor));
}

/// x P(T < x): the tail is exp(-x^2 / 2) (|x| Q(|x|)), so no cancellation spoils it. f(-inf) = -0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu_erf_of_tail_f32(D d, V x) {
  const V t = hn::Min(hn::Abs(x), hn::Set(d, 16.0f));
  const V e = gaussian_f32(d, t), q = normal_tail_f32(d, t);
  const V negative = hn::Neg(hn::Mul(e, hn::Mul(t, q)));
  const V positive = hn::Mul(x, hn::NegMulAdd(e, q, hn::Set(d, 1.0f)));
  return keep_nan(d, x, hn::IfThenElse(hn::Lt(x, hn::Zero(d)), negative, positive));
}

/// The same. AVX-512 looks a polynomial of P(T > |x|) up for each element, in the registers that
/// hold all of them: a third of the instructions, and no division. Below -5.9, where hardly
/// anything lies, there is none.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu_erf_f32(D d, V x) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (hn::MaxLanes(D()) == 16) {
    const V end = hn::Set(d, 5.9f), zero = hn::Zero(d);
    const V t = hn::Min(hn::Abs(x), end);
    // Added to 1.5 2^23, 16 t / 3 is rounded to an integer, whose bits are the last ones.
    const V shift = hn::Set(d, 0x1.8p23f);
    const V i = hn::MulAdd(t, hn::Set(d, 16.0f / 3), shift);
    const V s = hn::NegMulAdd(hn::Sub(i, shift), hn::Set(d, 3.0f / 16), t);
    const auto coefficient = [&](int k) HWY_ATTR {
      return V{_mm512_permutex2var_ps(hn::Load(d, kNormalTail[k]).raw, _mm512_castps_si512(i.raw),
                                      hn::Load(d, kNormalTail[k] + 16).raw)};
    };
    V tail = coefficient(0);
    for (int k = 1; k < 7; ++k) tail = hn::MulAdd(tail, s, coefficient(k));
    // Of NaN the first term is NaN.
    const V y = hn::NegMulAdd(t, tail, hn::IfThenElse(hn::Lt(x, zero), zero, x));
    const auto is_far = hn::Lt(x, hn::Neg(end));
    if (HWY_LIKELY(hn::AllFalse(d, is_far))) return y;
    return hn::IfThenElse(is_far, gelu_erf_of_tail_f32(d, x), y);
  }
#endif
  return gelu_erf_of_tail_f32(d, x);
}

/// P(T < x) + x exp(-x^2 / 2) / sqrt(2 pi)
template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu_erf_derivative_f32(D d, V x) {
  const V t = hn::Min(hn::Abs(x), hn::Set(d, 16.0f));
  const V e = gaussian_f32(d, t), q = normal_tail_f32(d, t);
  const V weight = hn::NegMulAdd(t, hn::Set(d, 0.398942280f), q);
  const V negative = hn::Mul(e, weight);
  const V positive = hn::NegMulAdd(e, weight, hn::Set(d, 1.0f));
  return keep_nan(d, x, hn::IfThenElse(hn::Lt(x, hn::Zero(d)), negative, positive));
}

/// (1 + tanh(z / 2)) / 2 = sigmoid(z) with z = 2 sqrt(2 / pi) (x + 0.044715 x^3). f(-inf) = -0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu_tanh_f32(D d, V x) {
  const V square = hn::Mul(x, x);
  const V z = hn::Mul(x, hn::MulAdd(square, hn::Set(d, 0.0713548163f), hn::Set(d, 1.59576912f)));
  return keep_nan(d, x, hn::Mul(without_negative_infinity(d, x), sigmoids_f32(d, z).sigmoid));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu_tanh_derivative_f32(D d, V x) {
  // Beyond +-20 the derivative is 1 or 0.
  const V b = hn::Max(hn::Min(x, hn::Set(d, 20.0f)), hn::Set(d, -20.0f));
  const V square = hn::Mul(b, b);
  const V z = hn::Mul(b, hn::MulAdd(square, hn::Set(d, 0.0713548163f), hn::Set(d, 1.59576912f)));
  const V dz = hn::MulAdd(square, hn::Set(d, 0.214064449f), hn::Set(d, 1.59576912f));
  const Sigmoids<V> s = sigmoids_f32(d, z);
  const V factor = hn::MulAdd(hn::Mul(b, dz), s.complement, hn::Set(d, 1.0f));
  return keep_nan(d, x, hn::Mul(s.sigmoid, factor));
}

}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
