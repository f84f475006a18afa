// GELU and its derivative of what a 16-bit format holds, for epilogues: a third of the instructions
// of math.cuh's functions, with the same bound of 10 u, u = 2^-24, on the relative error.
//
// With t = |x|: x P(T < x) = max(x, 0) - t e q, where e = exp(-t^2 / 2) and q = normal_tail(t). t^2
// is exact in f32, as t has at most 11 significant bits. Its product with log2(e) / 2 is rounded;
// what the rounding lost is brought back to e, which it would change by up to 90 u. That leaves, in
// u: ex2 2.9, the reciprocal at most 2, Horner's rule 2, and a product or sum each for e, q, e q
// and the result.
#pragma once

#include "kernels/device/approx.h"
#include "kernels/device/math.cuh"

namespace weft::kernels {

struct NarrowGelu {
  float x, t, e, q;

  /// x: a value of f16 or bf16. NaN passes through.
  __device__ __forceinline__ explicit NarrowGelu(float x) : x(x) {
    // -log2(e) / 2 in two parts, and ln 2.
    constexpr float kHigh = -0x1.715476p-1f, kLow = -0x1.4ae0c0p-27f, kLn2 = 0x1.62e430p-1f;
    t = ptx::min_or_nan(std::abs(x), 16.0f);
    const float r = ptx::rcp_approx(t + 4.0f);
    q = normal_tail(std::fma(-8.0f, r, 1.0f), r);
    const float square = t * t, z = square * kHigh;
    const float lost = std::fma(square, kLow, std::fma(square, kHigh, -z));
    const float rounded = ptx::ex2_approx_subnormal(z);
    e = std::fma(rounded, lost * kLn2, rounded);
  }

  __device__ __forceinline__ float value() const { return std::fma(-t, e * q, std::fmax(x, 0.0f)); }
  __device__ __forceinline__ float derivative() const {
    const float upper = e * std::fma(-t, 0.398942280f, q);
    return x < 0 ? upper : 1 - upper;
  }
};

}  // namespace weft::kernels
