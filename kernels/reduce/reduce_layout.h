// The axes of a reduction sorted into kept and reduced ones, with neighbours joined where their
// strides allow it: most reductions of contiguous tensors become rows or columns of a matrix.
#pragma once

#include "core/tensor.h"

namespace weft::kernels {

struct ReduceLayout {
  Shape kept;  // sizes; axes of size 1 are left out
  Strides kept_x, kept_y;
  Shape reduced;
  Strides reduced_x;
  int64_t outputs = 1;  // product of kept
  int64_t count = 1;    // product of reduced: elements behind each output
};

/// any_order: axes may be sorted by their stride in x, largest first, because the op does not care
/// in which order it meets the elements; else both lists keep the row-major order.
ReduceLayout reduce_layout(const Tensor& x, const Tensor& y, bool any_order);

/// Walks the offsets of a shape in row-major order, from any place on.
class OffsetWalk {
 public:
  OffsetWalk(const Shape& shape, const Strides& strides, int64_t index);

  int64_t offset() const { return offset_; }
  void next() {
    for (int d = shape_.size() - 1; d >= 0; --d) {
      offset_ += strides_[d];
      if (++place_[d] < shape_[d]) return;
      offset_ -= strides_[d] * shape_[d];
      place_[d] = 0;
    }
  }

 private:
  const Shape& shape_;
  const Strides& strides_;
  int64_t place_[kMaxDims] = {};
  int64_t offset_ = 0;
};

/// The element offset of the index-th place of a shape in row-major order.
inline int64_t offset_at(const Shape& shape, const Strides& strides, int64_t index) {
  return OffsetWalk(shape, strides, index).offset();
}

}  // namespace weft::kernels
