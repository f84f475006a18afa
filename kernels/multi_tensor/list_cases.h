// The lists of tensors that the multi-tensor ops are tested on.
#pragma once

#include <vector>

#include "kernels/testing/op_table.h"

namespace weft::kernels {

/// Around the widths of vectors, of blocks and of chunks.
inline std::vector<Shape> list_shapes() {
  return {{},   {0},  {1},       {15},   {16},   {17},   {31},
          {32}, {33}, {3, 5, 7}, {1021}, {1024}, {1025}, {32769}};
}

/// Tensors of uniform values, to be changed in place. Unless `odd` is 0, the last but one holds it
/// among its values.
inline std::vector<Tensor> inout_list(Inputs& in, const std::vector<Shape>& shapes, DType dtype,
                                      double odd) {
  std::vector<Tensor> list;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const bool is_marked = odd != 0 && i + 2 == shapes.size();
    list.push_back(in.inout(is_marked ? in.values({1, 2, odd, 3}, shapes[i], dtype)
                                      : in.uniform(shapes[i], dtype, -1, 1)));
  }
  return list;
}

/// A vector without its first element: contiguous, and at no multiple of a vector's size.
inline Tensor without_first(const Tensor& x) {
  return Tensor::view_of(x.storage(), {x.numel() - 1}, {1}, x.offset() + 1, x.dtype());
}

}  // namespace weft::kernels
