// Fill: y[i] = value, rounded to y's dtype as the copy kernel converts an f64.
//
// y: any shape, dtype and strides, without repeated elements; assigned (=).
#pragma once

#include "kernels/op.h"

namespace weft::kernels {

struct FillProblem {
  Tensor y;
  double value = 0;

  DType dtype() const { return y.dtype(); }
  Device device() const { return y.device(); }
  std::string describe() const { return fmt::format("fill({}, {})", y, value); }
};

WEFT_DECLARE_OP(fill, FillProblem);

}  // namespace weft::kernels
