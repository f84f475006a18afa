// Tensors of one shape walked together, block by block.
//
// A Walk orders the dimensions by the first tensor's strides and merges those that all tensors let
// it merge, so that contiguous tensors become one long row. It is then cut into blocks of at most
// kBlock elements, each a piece of one row or several whole rows. Elementwise kernels read a
// block of every operand into L1, loop over it in one type, and write it back (block_io.h).
#pragma once

#include <initializer_list>
#include <span>

#include "core/parallel.h"
#include "core/tensor.h"

namespace weft::kernels {

/// Elements in a block: 4 KiB of floats.
inline constexpr int64_t kBlock = 1024;

/// Columns [column, column + columns) of the rows [row, row + rows); all columns if rows > 1.
struct Block {
  int64_t row = 0, rows = 0, column = 0, columns = 0;
  int64_t size() const { return rows * columns; }
};

class Walk {
 public:
  /// At most kMaxOperands tensors of one shape, the output first.
  explicit Walk(std::span<const Tensor> tensors);
  explicit Walk(std::initializer_list<Tensor> tensors)
      : Walk(std::span(tensors.begin(), tensors.size())) {}

  /// The merged dimensions, outermost first; at least one.
  const Shape& shape() const { return shape_; }
  std::span<const int64_t> strides(int operand) const {
    return {strides_[operand], static_cast<size_t>(shape_.size())};
  }
  int64_t stride(int operand) const { return strides(operand).back(); }  // along a row
  int64_t numel() const { return numel_; }
  /// Elements lie side by side in the order of the walk.
  bool is_dense(int operand) const { return dense_[operand]; }
  /// Every element is the same one.
  bool is_constant(int operand) const { return constant_[operand]; }

  int64_t blocks() const { return blocks_; }
  Block block(int64_t index) const;

  /// Calls f(offset) with the element offset of the first element of each of the block's rows.
  template <class F>
  void for_each_row(int operand, const Block& block, F&& f) const;

  static constexpr int kMaxOperands = 32;

 private:
  Shape shape_;
  // Filled as far as there are operands and dimensions.
  int64_t strides_[kMaxOperands][kMaxDims];
  bool dense_[kMaxOperands], constant_[kMaxOperands];
  int64_t numel_ = 0, blocks_ = 0;
  int64_t rows_per_block_ = 1, blocks_per_row_ = 1, columns_per_block_ = 0, rows_ = 0;
};

/// Calls f with a zero of the unsigned type of so many bytes, 1, 2, 4 or 8: elements moved as bits.
template <class F>
auto with_word(size_t bytes, F&& f) {
  switch (bytes) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      return f(uint64_t{});
  }
}

template <class F>
void Walk::for_each_row(int operand, const Block& block, F&& f) const {
  const int64_t* const strides = strides_[operand];
  const int outer = shape_.size() - 1;
  int64_t offset = block.column * strides[outer];
  int64_t index[kMaxDims] = {};
  int64_t rest = block.row;
  for (int d = outer - 1; d >= 0; --d) {
    index[d] = rest % shape_[d];
    rest /= shape_[d];
    offset += index[d] * strides[d];
  }
  for (int64_t r = 0;; ++r) {
    f(offset);
    if (r + 1 == block.rows) return;
    for (int d = outer - 1; d >= 0; --d) {
      offset += strides[d];
      if (++index[d] < shape_[d]) break;
      offset -= strides[d] * shape_[d];
      index[d] = 0;
    }
  }
}

}  // namespace weft::kernels
