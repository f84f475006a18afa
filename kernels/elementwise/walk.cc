#include "kernels/elementwise/walk.h"

#include <algorithm>
#include <cstdlib>

namespace weft::kernels {

Walk::Walk(std::span<const Tensor> t) {
  const int operands = static_cast<int>(t.size());
  WEFT_ASSERT(operands >= 1 && operands <= kMaxOperands);
  for (int k = 0; k < operands; ++k) WEFT_ASSERT(t[k].shape() == t[0].shape());
  numel_ = t[0].numel();
  if (numel_ == 0) return;

  if (std::ranges::all_of(t, &Tensor::is_contiguous)) {
    shape_.push_back(numel_);
    for (int k = 0; k < operands; ++k) {
      strides_[k][0] = 1;
      dense_[k] = true;
      constant_[k] = false;
    }
  } else {
    // Dimensions of size 1 do not count; the rest is sorted by the strides of the output, then of
    // the inputs, outermost first.
    std::array<int, kMaxDims> order{};
    int dims = 0;
    for (int d = 0; d < t[0].dim(); ++d) {
      if (t[0].shape()[d] != 1) order[dims++] = d;
    }
    std::stable_sort(order.begin(), order.begin() + dims, [&](int a, int b) {
      for (int k = 0; k < operands; ++k) {
        const int64_t x = std::abs(t[k].strides()[a]), y = std::abs(t[k].strides()[b]);
        if (x != y) return x > y;
      }
      return false;
    });
    for (int i = 0; i < dims; ++i) {
      const int d = order[i];
      const int last = shape_.size() - 1;
      bool merges = last >= 0;
      for (int k = 0; merges && k < operands; ++k) {
        merges = strides_[k][last] == t[k].strides()[d] * t[k].shape()[d];
      }
      if (!merges) shape_.push_back(1);
      shape_[shape_.size() - 1] *= t[0].shape()[d];
      for (int k = 0; k < operands; ++k) strides_[k][shape_.size() - 1] = t[k].strides()[d];
    }
    if (shape_.empty()) {
      shape_.push_back(1);
      for (int k = 0; k < operands; ++k) strides_[k][0] = 1;
    }
    const Strides dense = contiguous_strides(shape_);
    for (int k = 0; k < operands; ++k) {
      dense_[k] = std::ranges::equal(strides(k), dense);
      constant_[k] =
          numel_ > 1 && std::ranges::all_of(strides(k), [](int64_t stride) { return stride == 0; });
    }
  }

  // Short rows are taken several at a time, long ones in equal pieces of whole cache lines.
  const int64_t columns = shape_.back();
  rows_ = numel_ / columns;
  constexpr int64_t kShort = kBlock / 4;
  if (columns < kShort) {
    rows_per_block_ = kBlock / columns;
    columns_per_block_ = columns;
    blocks_ = (rows_ + rows_per_block_ - 1) / rows_per_block_;
  } else {
    constexpr int64_t kLine = 64;
    const int64_t pieces = (columns + kBlock - 1) / kBlock;
    columns_per_block_ = ((columns + pieces - 1) / pieces + kLine - 1) / kLine * kLine;
    blocks_per_row_ = (columns + columns_per_block_ - 1) / columns_per_block_;
    blocks_ = rows_ * blocks_per_row_;
  }
}

Block Walk::block(int64_t index) const {
  const int64_t columns = shape_.back();
  if (blocks_per_row_ == 1 && columns_per_block_ == columns) {
    const int64_t row = index * rows_per_block_;
    return {row, std::min(rows_per_block_, rows_ - row), 0, columns};
  }
  const int64_t column = index % blocks_per_row_ * columns_per_block_;
  return {index / blocks_per_row_, 1, column, std::min(columns_per_block_, columns - column)};
}

}  // namespace weft::kernels
