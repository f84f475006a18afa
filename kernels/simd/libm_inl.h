// C's elementary functions that hwy/contrib/math has not, or not with IEEE's special values, on
// vectors of floats: exp2 log2 log10, sin cos tan and their inverses, sinh cosh and theirs, fmod.
// Included as convert_inl.h is, where there is a fused multiply-add: elsewhere the C library is as
// fast.
//
// As in Cephes each function is a polynomial on a short interval and an identity that leads there.
// The polynomials are minimax in the relative error (Remez, 45 digits) with coefficients rounded to
// floats one after the other, each refitted to those before it; comments give their errors. What a
// float cannot hold, a constant or a reduced argument, is carried as a sum of two, so that the
// largest error of each function, which the references of kernels/unary and kernels/binary state,
// is its last few roundings.

#if defined(WEFT_KERNELS_SIMD_LIBM_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_SIMD_LIBM_INL_H
#undef WEFT_KERNELS_SIMD_LIBM_INL_H
#else
#define WEFT_KERNELS_SIMD_LIBM_INL_H
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/simd/math_inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_NATIVE_FMA

/// y, but f(x...) of C's library in the lanes of the mask, of which there are few.
template <class D, class M, class V, class F, class... X>
HWY_INLINE V or_else_by_lane(D d, M is_plain, V y, F f, X... x) {
  if (HWY_LIKELY(hn::AllTrue(d, is_plain))) return y;
  constexpr size_t kLanes = hn::MaxLanes(D());
  HWY_ALIGN float plain[kLanes], results[kLanes], operands[sizeof...(X)][kLanes];
  hn::Store(hn::IfThenElseZero(is_plain, hn::Set(d, 1.0f)), d, plain);
  hn::Store(y, d, results);
  size_t next = 0;
  (hn::Store(x, d, operands[next++]), ...);
  for (size_t i = 0; i < hn::Lanes(d); ++i) {
    if (plain[i] == 0) results[i] = f(operands, i);
  }
  return hn::Load(d, results);
}

template <float (*f)(float), class D, class M, class V>
HWY_INLINE V or_else(D d, M is_plain, V y, V x) {
  return or_else_by_lane(
      d, is_plain, y, [](const auto& operand, size_t i) { return f(operand[0][i]); }, x);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_f32(D d, V x) {
  // (2^t - 1) / t on [-1/2, 1/2], 2^-26.3.
  constexpr float kC[] = {0x1.62e430p-1f, 0x1.ebfb94p-3f,  0x1.c6af9ep-5f,
                          0x1.3b6814p-7f, 0x1.5ef4dep-10f, 0x1.179d48p-13f};
  const V bounded = clamp_f32(d, x, -151.0f, 129.0f);
  const V whole = hn::Round(bounded), t = hn::Sub(bounded, whole);
  const V y = hn::MulAdd(t, polynomial(d, t, kC), hn::Set(d, 1.0f));
  return times_power_of_two(d, y, whole);
}

/// exp(x) / 2 for x >= 0, which overflows where sinh and cosh do; not for NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V half_exp_f32(D d, V x) {
  const Exponential<V> e = exponential_f32(d, hn::Min(x, hn::Set(d, 92.0f)));
  return times_power_of_two(d, e.fraction, hn::Sub(e.exponent, hn::Set(d, 1.0f)));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V cosh_f32(D d, V x) {
  const V e = half_exp_f32(d, hn::Abs(x));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Add(e, hn::Div(hn::Set(d, 0.25f), e)));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V sinh_f32(D d, V x) {
  // (sinh(z) / z - 1) / z^2 by z^2 on [0, 1], 2^-25.3.
  constexpr float kC[] = {0x1.555598p-3f, 0x1.10f760p-7f, 0x1.ab42aap-13f};
  const V magnitude = hn::Abs(x), square = hn::Mul(x, x);
  const V near = hn::MulAdd(hn::Mul(x, square), polynomial(d, square, kC), x);
  const V e = half_exp_f32(d, magnitude);
  const V far = hn::CopySign(hn::Sub(e, hn::Div(hn::Set(d, 0.25f), e)), x);
  const V y = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 1.0f)), near, far);
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

/// x = 2^exponent (1 + high), of which log(1 + high) = high + low. high lies in [sqrt(1/2) - 1,
/// sqrt(2) - 1].
template <class V>
struct Logarithm {
  V exponent, high, low;
};

/// Of a normal x > 0, and of x + rest, where |rest| is at most x's roundoff.
template <class D, class V = hn::Vec<D>>
HWY_INLINE Logarithm<V> logarithm_f32(D d, V x, V rest) {
  // (log(1 + t) - t + t^2 / 2) / t^3, 2^-27.4.
  constexpr float kC[] = {0x1.555548p-2f,  -0x1.000070p-2f, 0x1.99a542p-3f,
                          -0x1.552f10p-3f, 0x1.2302fep-3f,  -0x1.010416p-3f,
                          0x1.f022fep-4f,  -0x1.be7322p-4f, 0x1.aff080p-5f};
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(di, x);
  const auto n = hn::ShiftRight<23>(hn::Sub(bits, hn::Set(di, 0x3f3504f3)));  // from sqrt(1/2) on
  const V significand = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(n)));
  // Beyond 2^100 the rest is out of sight.
  const V scale = power_of_two(d, hn::Max(hn::Neg(n), hn::Set(di, -100)));
  const V t = hn::MulAdd(rest, scale, hn::Sub(significand, hn::Set(d, 1.0f)));
  const V bend = hn::MulAdd(t, polynomial(d, t, kC), hn::Set(d, -0.5f));
  return {hn::ConvertTo(d, n), t, hn::Mul(hn::Mul(t, t), bend)};
}

/// The natural logarithm, plus log(2) times `more`.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V natural(D d, const Logarithm<V>& log, V more) {
  const V n = hn::Add(log.exponent, more);
  const V low = hn::Add(log.high, hn::MulAdd(n, hn::Set(d, 0x1.7f7d1cp-20f), log.low));
  return hn::MulAdd(n, hn::Set(d, 0x1.62e4p-1f), low);
}

/// y as the logarithm of x in whatever base, with its limits where x is no positive number.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V with_limits_of_logarithm(D d, V x, V y) {
  const V inf = hn::Set(d, std::numeric_limits<float>::infinity()), zero = hn::Zero(d);
  y = hn::IfThenElse(hn::Lt(x, inf), y, x);  // inf and NaN stay
  y = hn::IfThenElse(hn::Eq(x, zero), hn::Neg(inf), y);
  return hn::IfThenElse(hn::Lt(x, zero), hn::Set(d, std::numeric_limits<float>::quiet_NaN()), y);
}

/// n one + high times the factor: the logarithm in a base of which log(2) is `one` and 1 /
/// log(base) the factor, each a sum of two floats. The first of `one` has so few bits that n times
/// it is exact.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V logarithm_in_base(D d, V x, const float (&one)[2], const float (&factor)[2]) {
  // Subnormal numbers are 2^25 times as large here.
  const auto is_small = hn::Lt(x, hn::Set(d, 0x1p-126f));
  const V normal = hn::IfThenElse(is_small, hn::Mul(x, hn::Set(d, 0x1p25f)), x);
  const Logarithm<V> log = logarithm_f32(d, normal, hn::Zero(d));
  const V n = hn::Sub(log.exponent, hn::IfThenElseZero(is_small, hn::Set(d, 25.0f)));
  V y = hn::MulAdd(log.high, hn::Set(d, factor[1]), hn::Mul(log.low, hn::Set(d, factor[0])));
  y = hn::MulAdd(log.high, hn::Set(d, factor[0]), hn::MulAdd(n, hn::Set(d, one[1]), y));
  return with_limits_of_logarithm(d, x, hn::MulAdd(n, hn::Set(d, one[0]), y));
}

/// Exact for powers of two.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V log2_f32(D d, V x) {
  return logarithm_in_base(d, x, {1.0f, 0.0f}, {0x1.715476p+0f, 0x1.4ae0c0p-26f});
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V log10_f32(D d, V x) {
  return logarithm_in_base(d, x, {0x1.344p-2f, 0x1.3509f8p-18f},
                           {0x1.bcb7b2p-2f, -0x1.5b235ep-27f});
}

/// log(1 + x), x >= 0: the sum rounded, and what the rounding lost.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V log_of_one_plus(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V sum = hn::Add(one, x);
  const V rest = hn::Sub(hn::Min(one, x), hn::Sub(sum, hn::Max(one, x)));
  const V y = natural(d, logarithm_f32(d, sum, rest), hn::Zero(d));
  return hn::IfThenElse(hn::Lt(x, hn::Set(d, std::numeric_limits<float>::infinity())), y, x);
}

// Where the square of x would overflow, far above where log(x + sqrt(x^2 +- 1)) is log(2 x).
inline constexpr float kLogOfTwice = 0x1p40f;

/// log(2 x) for kLogOfTwice <= x.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V log_of_twice(D d, V x) {
  const V y = natural(d, logarithm_f32(d, x, hn::Zero(d)), hn::Set(d, 1.0f));
  return hn::IfThenElse(hn::Lt(x, hn::Set(d, std::numeric_limits<float>::infinity())), y, x);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V asinh_f32(D d, V x) {
  const V one = hn::Set(d, 1.0f), magnitude = hn::Abs(x);
  const V square = hn::Mul(x, x);
  const V bend = hn::Div(square, hn::Add(one, hn::Sqrt(hn::Add(one, square))));
  const V near = log_of_one_plus(d, hn::Add(magnitude, bend));
  const auto is_far = hn::Ge(magnitude, hn::Set(d, kLogOfTwice));
  V y = near;
  if (HWY_UNLIKELY(!hn::AllFalse(d, is_far))) {
    y = hn::IfThenElse(is_far, log_of_twice(d, magnitude), near);
  }
  return hn::IfThenElse(hn::IsNaN(x), x, hn::CopySign(y, x));
}

/// NaN below 1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V acosh_f32(D d, V x) {
  const V one = hn::Set(d, 1.0f), beyond = hn::Sub(x, one);
  const V root = hn::Sqrt(hn::Mul(beyond, hn::Add(beyond, hn::Set(d, 2.0f))));
  V y = log_of_one_plus(d, hn::Add(beyond, root));
  const auto is_far = hn::Ge(x, hn::Set(d, kLogOfTwice));
  if (HWY_UNLIKELY(!hn::AllFalse(d, is_far))) y = hn::IfThenElse(is_far, log_of_twice(d, x), y);
  return hn::IfThenElse(hn::Ge(x, one), y, hn::Set(d, std::numeric_limits<float>::quiet_NaN()));
}

/// log((1 + x) / (1 - x)) / 2; NaN beyond 1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V atanh_f32(D d, V x) {
  const V one = hn::Set(d, 1.0f), magnitude = hn::Abs(x);
  const V ratio = hn::Div(hn::Add(magnitude, magnitude), hn::Sub(one, magnitude));
  const V y = hn::CopySign(hn::Mul(hn::Set(d, 0.5f), log_of_one_plus(d, ratio)), x);
  return hn::IfThenElse(hn::Le(magnitude, one), y,
                        hn::Set(d, std::numeric_limits<float>::quiet_NaN()));
}

// pi / 2 as a sum.
inline constexpr float kHalfPi[] = {0x1.921fb6p+0f, -0x1.777a5cp-25f, -0x1.ee59dap-50f};

/// x = quadrant pi / 2 + high + low, for |x| <= kAngleBound.
template <class V, class I>
struct Angle {
  I quadrant;
  V high, low;
};

// The number of quadrants has 13 bits then, so that x less the first part of pi / 2 so many times
// is exact. The product with the second part is taken with its rounding error, the difference too.
// Above, the C library takes over.
inline constexpr float kAngleBound = 8192;

template <class D, class V = hn::Vec<D>>
HWY_INLINE auto reduced_angle(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V n = hn::Round(hn::Mul(x, hn::Set(d, 0x1.45f306p-1f)));  // 2 / pi
  const V exact = hn::NegMulAdd(n, hn::Set(d, kHalfPi[0]), x);
  const V second = hn::Set(d, kHalfPi[1]), moved = hn::Mul(n, second);
  const V high = hn::Sub(exact, moved);
  const V lost = hn::Sub(hn::Sub(hn::Sub(exact, high), moved), hn::MulSub(n, second, moved));
  const V low = hn::NegMulAdd(n, hn::Set(d, kHalfPi[2]), lost);
  const auto quadrant = hn::ConvertTo(di, n);
  return Angle<V, decltype(quadrant)>{quadrant, high, low};
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE auto is_small_angle(D d, V x) {
  return hn::Le(hn::Abs(x), hn::Set(d, kAngleBound));
}

/// sin((quadrant + turns) pi / 2 + high + low).
template <class D, class V, class I>
HWY_INLINE V sine_of(D d, const Angle<V, I>& angle, int32_t turns) {
  // (sin(z) / z - 1) / z^2 and (cos(z) - 1 + z^2 / 2) / z^4 by z^2 up to (pi / 4)^2, 2^-27.9 and
  // 2^-33.
  constexpr float kSine[] = {-0x1.555546p-3f, 0x1.110778p-7f, -0x1.9953eep-13f};
  constexpr float kCosine[] = {0x1.55554ap-5f, -0x1.6c0c28p-10f, 0x1.99e804p-16f};
  const hn::RebindToSigned<D> di;
  const V one = hn::Set(d, 1.0f), square = hn::Mul(angle.high, angle.high);
  const V bend = hn::MulAdd(hn::Mul(angle.high, square), polynomial(d, square, kSine), angle.low);
  const V sine = hn::Add(angle.high, bend);
  const V half = hn::Mul(hn::Set(d, 0.5f), square), down = hn::Sub(one, half);
  const V rest = hn::NegMulAdd(angle.high, angle.low,
                               hn::Mul(hn::Mul(square, square), polynomial(d, square, kCosine)));
  const V cosine = hn::Add(down, hn::Add(hn::Sub(hn::Sub(one, down), half), rest));
  const I quadrant = hn::Add(angle.quadrant, hn::Set(di, turns));
  const auto is_odd = hn::TestBit(quadrant, hn::Set(di, 1));
  const auto sign = hn::BitCast(d, hn::ShiftLeft<30>(hn::And(quadrant, hn::Set(di, 2))));
  return hn::Xor(hn::IfThenElse(hn::RebindMask(d, is_odd), cosine, sine), sign);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V sin_f32(D d, V x) {
  const V y = sine_of(d, reduced_angle(d, x), 0);
  return or_else<std::sin>(d, is_small_angle(d, x), hn::IfThenElse(hn::Eq(x, hn::Zero(d)), x, y),
                           x);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V cos_f32(D d, V x) {
  return or_else<std::cos>(d, is_small_angle(d, x), sine_of(d, reduced_angle(d, x), 1), x);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V tan_f32(D d, V x) {
  // (tan(z) / z - 1) / z^2 by z^2 up to (pi / 4)^2, 2^-25.7.
  constexpr float kC[] = {0x1.5554dep-2f, 0x1.112deap-3f, 0x1.b5851ap-5f,
                          0x1.907200p-6f, 0x1.967f7ep-9f, 0x1.33e8c2p-7f};
  const hn::RebindToSigned<D> di;
  const auto angle = reduced_angle(d, x);
  const V square = hn::Mul(angle.high, angle.high);
  const V t = hn::Add(
      angle.high, hn::MulAdd(hn::Mul(angle.high, square), polynomial(d, square, kC), angle.low));
  const auto is_odd = hn::RebindMask(d, hn::TestBit(angle.quadrant, hn::Set(di, 1)));
  const V y = hn::IfThenElse(is_odd, hn::Div(hn::Set(d, -1.0f), t), t);
  return or_else<std::tan>(d, is_small_angle(d, x), hn::IfThenElse(hn::Eq(x, hn::Zero(d)), x, y),
                           x);
}

/// atan(z) for z in [0, 1].
template <class D, class V = hn::Vec<D>>
HWY_INLINE V atan_to_one(D d, V z) {
  // (atan(z) / z - 1) / z^2 by z^2, 2^-25.8.
  constexpr float kC[] = {-0x1.5554dcp-2f, 0x1.9978ecp-3f, -0x1.230a8ap-3f, 0x1.b4de00p-4f,
                          -0x1.354e8ep-4f, 0x1.61e756p-5f, -0x1.0c0c7ap-6f, 0x1.7e8b5ep-9f};
  const V square = hn::Mul(z, z);
  return hn::MulAdd(hn::Mul(z, square), polynomial(d, square, kC), z);
}

/// pi / 2 - y.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V from_half_pi(D d, V y) {
  return hn::Sub(hn::Set(d, kHalfPi[0]), hn::Sub(y, hn::Set(d, kHalfPi[1])));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V atan_f32(D d, V x) {
  const V one = hn::Set(d, 1.0f), magnitude = hn::Abs(x);
  const V a = atan_to_one(d, hn::Div(hn::Min(magnitude, one), hn::Max(magnitude, one)));
  const V y = hn::IfThenElse(hn::Gt(magnitude, one), from_half_pi(d, a), a);
  return hn::IfThenElse(hn::IsNaN(x), x, hn::CopySign(y, x));
}

/// The angle of the point (x, y), in [-pi, pi], with C's signs of zero.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V atan2_f32(D d, V y, V x) {
  const hn::RebindToSigned<D> di;
  const V height = hn::Abs(y), width = hn::Abs(x), zero = hn::Zero(d);
  const V larger = hn::Max(height, width), smaller = hn::Min(height, width);
  // Of two zeros 0, of two infinities 1.
  V z = hn::Div(smaller, hn::IfThenElse(hn::Eq(larger, zero), hn::Set(d, 1.0f), larger));
  z = hn::IfThenElse(hn::Eq(smaller, hn::Set(d, std::numeric_limits<float>::infinity())),
                     hn::Set(d, 1.0f), z);
  V a = atan_to_one(d, z);
  a = hn::IfThenElse(hn::Gt(height, width), from_half_pi(d, a), a);
  const V from_pi = hn::Sub(hn::Set(d, 2 * kHalfPi[0]), hn::Sub(a, hn::Set(d, 2 * kHalfPi[1])));
  const auto is_left = hn::RebindMask(d, hn::Lt(hn::BitCast(di, x), hn::Zero(di)));
  a = hn::CopySign(hn::IfThenElse(is_left, from_pi, a), y);
  const V sum = hn::Add(x, y);
  const auto is_number = hn::Not(hn::Or(hn::IsNaN(x), hn::IsNaN(y)));
  return hn::IfThenElse(is_number, a, sum);
}

/// asin(z) for z in [0, 1/2].
template <class D, class V = hn::Vec<D>>
HWY_INLINE V asin_to_half(D d, V z, V square) {
  // (asin(z) / z - 1) / z^2 by z^2, 2^-27.6.
  constexpr float kC[] = {0x1.5555c8p-3f, 0x1.330204p-4f, 0x1.747becp-5f, 0x1.8c39fep-6f,
                          0x1.5961f8p-5f};
  return hn::MulAdd(hn::Mul(z, square), polynomial(d, square, kC), z);
}

/// asin(z) of a z that is |x| up to 1/2 and sqrt((1 - |x|) / 2) beyond, where asin(|x|) is pi / 2
/// less twice that. NaN where |x| > 1.
template <class V, class M>
struct ArcSine {
  V value;
  M is_far;
};

template <class D, class V = hn::Vec<D>>
HWY_INLINE auto arc_sine(D d, V x) {
  const V half = hn::Set(d, 0.5f), magnitude = hn::Abs(x);
  const auto is_far = hn::Gt(magnitude, half);
  const V rest = hn::NegMulAdd(half, magnitude, half);
  const V square = hn::IfThenElse(is_far, rest, hn::Mul(x, x));
  const V z = hn::IfThenElse(is_far, hn::Sqrt(rest), magnitude);
  return ArcSine<V, decltype(is_far)>{asin_to_half(d, z, square), is_far};
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V asin_f32(D d, V x) {
  const auto a = arc_sine(d, x);
  const V far = from_half_pi(d, hn::Add(a.value, a.value));
  const V y = hn::CopySign(hn::IfThenElse(a.is_far, far, a.value), x);
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V acos_f32(D d, V x) {
  const auto a = arc_sine(d, x);
  const auto is_negative = hn::Lt(x, hn::Zero(d));
  const V twice = hn::Add(a.value, a.value);
  const V from_pi = hn::Sub(hn::Set(d, 2 * kHalfPi[0]), hn::Sub(twice, hn::Set(d, 2 * kHalfPi[1])));
  const V far = hn::IfThenElse(is_negative, from_pi, twice);
  const V near = from_half_pi(d, hn::CopySign(a.value, x));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::IfThenElse(a.is_far, far, near));
}

/// a - b trunc(a / b), exact, with the sign of a. The quotient is rounded, up to the next integer
/// at worst, which the sign of the rest tells. From 2^24 on, and of what is no number, the C
/// library's.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V fmod_f32(D d, V a, V b) {
  const V x = hn::Abs(a), y = hn::Abs(b);
  const V quotient = hn::Div(x, y);
  V rest = hn::NegMulAdd(hn::Trunc(quotient), y, x);
  rest = hn::IfThenElse(hn::Lt(rest, hn::Zero(d)), hn::Add(rest, y), rest);
  const auto is_plain = hn::And(hn::Lt(quotient, hn::Set(d, 0x1p24f)),
                                hn::Lt(y, hn::Set(d, std::numeric_limits<float>::infinity())));
  return or_else_by_lane(
      d, is_plain, hn::CopySign(rest, a),
      [](const auto& operand, size_t i) { return std::fmod(operand[0][i], operand[1][i]); }, a, b);
}

/// rest, moved by b where it has another sign than b.
template <class D, class V>
HWY_INLINE auto is_on_other_side(D d, V rest, V b) {
  const V zero = hn::Zero(d);
  return hn::And(hn::Ne(rest, zero), hn::Xor(hn::Lt(rest, zero), hn::Lt(b, zero)));
}

/// a - b floor(a / b), with the sign of b; the sum with b rounds once.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V remainder_f32(D d, V a, V b) {
  const V rest = fmod_f32(d, a, b);
  return hn::IfThenElse(is_on_other_side(d, rest, b), hn::Add(rest, b), rest);
}

/// The quotient of what is left when the remainder is taken away: an integer but for its rounding.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V floor_divide_f32(D d, V a, V b) {
  const V zero = hn::Zero(d), one = hn::Set(d, 1.0f), quotient = hn::Div(a, b);
  const V rest = fmod_f32(d, a, b);
  V whole = hn::Div(hn::Sub(a, rest), b);
  whole = hn::IfThenElse(is_on_other_side(d, rest, b), hn::Sub(whole, one), whole);
  const V down = hn::Floor(whole);
  V y = hn::IfThenElse(hn::Gt(hn::Sub(whole, down), hn::Set(d, 0.5f)), hn::Add(down, one), down);
  y = hn::IfThenElse(hn::Eq(whole, zero), hn::CopySign(zero, quotient), y);
  return hn::IfThenElse(hn::Eq(b, zero), quotient, y);
}

#endif  // HWY_NATIVE_FMA

}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
