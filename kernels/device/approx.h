// The special function unit's approximations. Relative errors beyond f32's rounding, from the PTX
// ISA:
//
//   ex2_approx    2^-22.5     lg2_approx   2^-22 (absolute in [0.5, 2])
//   rcp_approx    1 ulp       rsqrt_approx 2^-22.9
//   tanh_approx   2^-11
//
// Results and arguments below the normal range become zero (ftz), but for tanh and for
// ex2_approx_subnormal, which costs three instructions more. The emulator gives
// the correctly rounded value, which lies within each bound; kernels' bounds must allow for the
// device's.
#pragma once

#include <cmath>

#include "kernels/device/ptx.h"

namespace weft::ptx {

#ifndef __CUDACC__
inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
#endif

#define WEFT_APPROX(name, instruction, emulation)                 \
  __device__ __forceinline__ float name(float x) {                \
    float y;                                                      \
    WEFT_PTX(asm(instruction ".f32 %0, %1;"                       \
                 : "=f"(y)                                        \
                 : "f"(x)),                                       \
             const double wide = static_cast<double>(flushed(x)); \
             y = flushed(static_cast<float>(emulation)));         \
    return y;                                                     \
  }
WEFT_APPROX(ex2_approx, "ex2.approx.ftz", std::exp2(wide))
WEFT_APPROX(lg2_approx, "lg2.approx.ftz", std::log2(wide))
WEFT_APPROX(rcp_approx, "rcp.approx.ftz", 1 / wide)
WEFT_APPROX(rsqrt_approx, "rsqrt.approx.ftz", 1 / std::sqrt(wide))
#undef WEFT_APPROX

__device__ __forceinline__ float ex2_approx_subnormal(float x) {
  float y;
  WEFT_PTX(asm("ex2.approx.f32 %0, %1;"
               : "=f"(y)
               : "f"(x)),
           y = static_cast<float>(std::exp2(static_cast<double>(x))));
  return y;
}

/// The smaller; NaN when one is NaN (sm_80).
__device__ __forceinline__ float min_or_nan(float a, float b) {
  float y;
  WEFT_PTX(asm("min.NaN.f32 %0, %1, %2;"
               : "=f"(y)
               : "f"(a), "f"(b)),
           y = a != a   ? a
               : b != b ? b
                        : std::fmin(a, b));
  return y;
}

__device__ __forceinline__ float tanh_approx(float x) {
  float y;
  WEFT_PTX(asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)), y = std::tanh(x));
  return y;
}

}  // namespace weft::ptx
