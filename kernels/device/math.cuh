// The functions behind activations and their gradients, in f32 and f64, with full relative accuracy
// in the tails: the scalar forms of kernels/simd/math_inl.h, whose comments derive the polynomials.
// The references of kernels/unary and kernels/binary state the error bounds.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/device/cuda.h"

namespace weft::kernels {

/// exp(-t^2 / 2) for t in [0, 16]. The square is split into an exact part and a rest, so that its
/// rounding does not reach the result.
__device__ inline float gaussian(float t) {
  const float high = __uint_as_float(__float_as_uint(t) & 0xfffff000u);
  const float exact = -0.5f * (high * high);
  const float small = -0.5f * ((t - high) * (t + high));
  const float sum = exact + small;
  const float rest = small - (sum - exact);
  const float e = std::exp(sum);
  return std::fma(e, rest, e);
}

/// exp(t^2 / 2) P(T > t) of a standard normal T, t in [0, 16].
__device__ inline float normal_tail(float t) {
  constexpr float kC[] = {0x1.82b4bcp-1f,  -0x1.373e38p-1f, 0x1.8c6da2p-2f,  -0x1.7e0050p-3f,
                          0x1.eed1c4p-5f,  -0x1.ecf572p-8f, -0x1.cb8472p-9f, 0x1.9a9b70p-10f,
                          0x1.5da780p-13f, -0x1.21914cp-13f};
  const float r = 1.0f / (t + 4.0f);
  const float s = (t - 4.0f) * r;
  float p = kC[9];
#pragma unroll
  for (int k = 8; k >= 0; --k) p = std::fma(p, s, kC[k]);
  return p * r;
}

/// 1 / (1 + exp(-x)) and 1 minus that, both without cancellation.
template <class T>
struct Sigmoids {
  T sigmoid, complement;

  __device__ explicit Sigmoids(T x) {
    const T e = std::exp(-std::abs(x));
    const T larger = T{1} / (T{1} + e), smaller = e * larger;
    sigmoid = x < 0 ? smaller : larger;
    complement = x < 0 ? larger : smaller;
  }
};

/// x, but the largest finite number instead of -inf: its product with a vanished factor is -0.
template <class T>
__device__ T without_negative_infinity(T x) {
  constexpr T kLowest = std::numeric_limits<T>::lowest();
  return x < kLowest ? kLowest : x;
}

/// NaN passes through.
template <class T>
__device__ T clamped(T x, T bound) {
  return x < -bound ? -bound : x > bound ? bound : x;
}

/// min(max(x + 3, 0), 6)
template <class T>
__device__ T hardswish_gate(T x) {
  const T shifted = x + 3;
  return shifted < 0 ? T{0} : shifted > 6 ? T{6} : shifted;
}

template <class T>
__device__ T sigmoid(T x) {
  return Sigmoids<T>(x).sigmoid;
}

template <class T>
__device__ T softplus(T x) {
  return x != x ? x : (x > 0 ? x : T{0}) + std::log1p(std::exp(-std::abs(x)));
}

template <class T>
__device__ T silu(T x) {
  return without_negative_infinity(x) * Sigmoids<T>(x).sigmoid;
}

template <class T>
__device__ T silu_derivative(T x) {
  const T b = clamped(x, std::is_same_v<T, float> ? T{110} : T{800});
  const Sigmoids<T> s(b);
  return s.sigmoid * std::fma(b, s.complement, T{1});
}

/// a - b floor(a / b), with the sign of b. fmod is exact; the sum with b rounds once.
template <class T>
__device__ T floor_remainder(T a, T b) {
  const T rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

/// The quotient of what is left when that is taken away: an integer but for its rounding.
template <class T>
__device__ T floor_quotient(T a, T b) {
  if (b == 0) return a / b;
  const T rest = std::fmod(a, b);
  T whole = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) whole -= 1;
  if (whole == 0) return std::copysign(T{0}, a / b);
  const T down = std::floor(whole);
  return whole - down > T{0.5} ? down + 1 : down;
}

/// x P(T < x)
__device__ inline float gelu_erf(float x) {
  if (x != x) return x;
  const float t = std::fmin(std::abs(x), 16.0f), e = gaussian(t), q = normal_tail(t);
  return x < 0 ? -(e * (t * q)) : x * std::fma(-e, q, 1.0f);
}
__device__ inline double gelu_erf(double x) {
  return without_negative_infinity(x) * std::erfc(x * -0.70710678118654752440) / 2;
}

__device__ inline float gelu_erf_derivative(float x) {
  if (x != x) return x;
  const float t = std::fmin(std::abs(x), 16.0f), e = gaussian(t), q = normal_tail(t);
  const float weight = std::fma(-t, 0.398942280f, q);
  return x < 0 ? e * weight : std::fma(-e, weight, 1.0f);
}
__device__ inline double gelu_erf_derivative(double x) {
  x = clamped(x, 40.0);
  return 0.5 * std::erfc(x * -0.70710678118654752440) +
         0.39894228040143267794 * x * std::exp(-0.5 * x * x);
}

template <class T>
inline constexpr T kGeluTanhScale = static_cast<T>(2 * 0.79788456080286535588);  // 2 sqrt(2 / pi)

template <class T>
__device__ T gelu_tanh(T x) {
  constexpr T kCubic = static_cast<T>(0.044715 * 2 * 0.79788456080286535588);
  const T z = x * std::fma(x * x, kCubic, kGeluTanhScale<T>);
  return without_negative_infinity(x) * Sigmoids<T>(z).sigmoid;
}

template <class T>
__device__ T gelu_tanh_derivative(T x) {
  constexpr T kCubic = static_cast<T>(0.044715 * 2 * 0.79788456080286535588);
  const T b = clamped(x, std::is_same_v<T, float> ? T{20} : T{40});
  const T square = b * b;
  const T z = b * std::fma(square, kCubic, kGeluTanhScale<T>);
  const T dz = std::fma(square, 3 * kCubic, kGeluTanhScale<T>);
  const Sigmoids<T> s(z);
  return s.sigmoid * std::fma(b * dz, s.complement, T{1});
}

}  // namespace weft::kernels
