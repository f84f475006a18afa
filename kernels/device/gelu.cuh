// GELU and its derivative of what a 16-bit format holds, for epilogues that round to one: half the
// instructions of math.cuh's functions, with a relative error of at most 2^-16, a 32nd of f16's
// unit roundoff and a 256th of bf16's.
//
// With t = |x|: x P(T < x) = max(x, 0) - t e q, where e = exp(-t^2 / 2) and q = exp(t^2 / 2) P(T >
// t). q is r = 1 / (t + 4) times a polynomial in s = (t - 4) r, of degree 6: 2^-18.07 off (minimax
// of the relative error over t in [0, 16]). t^2 is exact in f32, as t has at most 11 significant
// bits; e's exponent of 2, below 256, is rounded, which changes e by at most ln 2 x 2^-17 =
// 2^-17.53. ex2, the reciprocal, Horner's rule and the products add less than 2^-20, all together
// 2^-16.6. e is computed 2^24 times as large and q as much smaller, so that neither leaves the
// normal range before their product does.
#pragma once

#include "kernels/device/approx.h"
#include "kernels/device/math.cuh"

namespace weft::kernels {

/// The derivative's error is a share of P(T < x) + |x| times the density.
struct NarrowGelu {
  float x, t, e, q;  // e and q: 2^24 times that, 2^-24 times that

  /// x: a value of f16 or bf16. NaN passes through.
  __device__ __forceinline__ explicit NarrowGelu(float x) : x(x) {
    constexpr float kHalfLog2E = 0x1.715476p-1f, kDown = 0x1p-24f;
    constexpr float kC[] = {0x1.82b502p-1f, -0x1.373c42p-1f, 0x1.8c5234p-2f, -0x1.7e6f48p-3f,
                            0x1.f47778p-5f, -0x1.acef76p-8f, -0x1.2b4a44p-8f};
    t = ptx::min_or_nan(std::abs(x), 16.0f);
    const float r = ptx::rcp_approx(t + 4.0f), s = std::fma(-8.0f, r, 1.0f);
    float p = kDown * kC[6];
#pragma unroll
    for (int k = 5; k >= 0; --k) p = std::fma(p, s, kDown * kC[k]);
    q = p * r;
    e = ptx::ex2_approx(std::fma(t * t, -kHalfLog2E, 24.0f));
  }

  __device__ __forceinline__ float value() const { return std::fma(-t, e * q, std::fmax(x, 0.0f)); }
  __device__ __forceinline__ float derivative() const {
    constexpr float kDensity = 0.398942280f * 0x1p-24f;  // 1 / sqrt(2 pi)
    const float upper = e * std::fma(-t, kDensity, q);
    return x < 0 ? upper : 1 - upper;
  }
};

}  // namespace weft::kernels
