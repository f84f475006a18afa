// Running sums along one axis, from its beginning or from its end.
//
//   y[a,i,b] = sum over j <= i of x[a,j,b]         reverse: over j >= i
//
// x, y: the same shape, any strides; y is assigned (=) and may not be x. Floats: y floating, sums
// in f64, rounded once for each element. Integers and bool: y i64, modulo 2^64.
#pragma once

#include "kernels/op.h"

namespace weft::kernels {

struct ScanProblem {
  Tensor x, y;
  int axis = 0;
  bool reverse = false;

  DType dtype() const { return x.dtype(); }
  Device device() const { return x.device(); }
  std::string describe() const {
    return fmt::format("scan({} to {}, axis={}{})", x, y.dtype(), axis, reverse ? ", reverse" : "");
  }
};

WEFT_DECLARE_OP(scan, ScanProblem);

}  // namespace weft::kernels
