// Cube: y[i] = x[i]^3.
//
// x, y: of one shape and dtype, contiguous; y is assigned (=).
#pragma once

#include "kernels/op.h"

namespace weft::kernels {

struct CubeProblem {
  Tensor x, y;

  DType dtype() const { return x.dtype(); }
  Device device() const { return x.device(); }
  std::string describe() const { return fmt::format("cube({})", x); }
};

WEFT_DECLARE_OP(cube, CubeProblem);

}  // namespace weft::kernels
