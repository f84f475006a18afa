// A tensor scaled into the range of an fp8 format, and its largest magnitude: what scaled fp8
// products are made of (Micikevicius et al., "FP8 formats for deep learning", arXiv:2209.05433).
//
//   y = x * scale            in f32, rounded to nearest even, saturated: also infinities become the
//                            largest finite number; NaNs stay
//   amax = max |x|           before the scaling; NaN when an element is NaN, 0 for no elements
//
// x: f32, bf16 or f16, any strides. y: f8e4m3 or f8e5m2, contiguous, of x's shape. amax: a scalar
// [] of dtype f32. Both outputs are optional and assigned (=). scale is rounded to f32.
#pragma once

#include "kernels/op.h"

namespace weft::kernels {

struct Fp8QuantizeProblem {
  Tensor x;
  Tensor y;     // optional
  Tensor amax;  // optional
  double scale = 1;

  DType dtype() const { return x.dtype(); }
  Device device() const { return x.device(); }
  std::string describe() const {
    return fmt::format("fp8_quantize({} -> {}, scale={})", x,
                       y.defined() ? name(y.dtype()) : "none", scale);
  }
};

WEFT_DECLARE_OP(fp8_quantize, Fp8QuantizeProblem);

/// The largest finite number of an fp8 format: 448 of e4m3, 57344 of e5m2.
inline double fp8_max(DType format) {
  WEFT_ASSERT(format == DType::f8e4m3 || format == DType::f8e5m2);
  return format == DType::f8e4m3 ? 448 : 57344;
}

}  // namespace weft::kernels
