// The special function unit's approximation of 2^x: relative error 2^-22.5 beyond f32's rounding
// (PTX ISA). Results and arguments below the normal range become zero (ftz). The emulator gives the
// correctly rounded value, which lies within the bound; kernels' bounds must allow for the
// device's.
#pragma once

#include <cmath>

#include "kernels/device/ptx.h"

namespace weft::ptx {

__device__ __forceinline__ float ex2_approx(float x) {
  float y;
  WEFT_PTX(
      asm("ex2.approx.ftz.f32 %0, %1;"
          : "=f"(y)
          : "f"(x)),
      const auto flushed =
          [](float v) { return std::fabs(v) < 0x1p-126f ? std::copysign(0.0f, v) : v; };
      y = flushed(static_cast<float>(std::exp2(static_cast<double>(flushed(x))))));
  return y;
}

}  // namespace weft::ptx
