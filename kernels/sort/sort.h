// Sorting along one axis, or the first elements of the order: sort, argsort, topk.
//
//   values[a,i,b] = x[a, places[a,i,b], b]      i < k, the size of values and places there
//
// The order is ascending, or descending; a NaN counts as larger than any number, -0 equals 0, and
// equal elements keep the order of their places (as PyTorch's with stable=True). k may be smaller
// than the axis of x: the k first of the order are given.
//
// x, values: one dtype, any of them; places: i64. Besides the axis all have the same sizes. Any
// strides; values and places are assigned (=), and values are the bits of x's elements.
#pragma once

#include "kernels/op.h"

namespace weft::kernels {

struct SortProblem {
  Tensor x;
  Tensor values, places;
  int axis = 0;
  bool descending = false;

  DType dtype() const { return x.dtype(); }
  Device device() const { return x.device(); }
  std::string describe() const {
    return fmt::format("sort({}, axis={}, {} of them, {})", x, axis, values.shape()[axis],
                       descending ? "descending" : "ascending");
  }
};

WEFT_DECLARE_OP(sort, SortProblem);

}  // namespace weft::kernels
