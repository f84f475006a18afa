#include "kernels/elementwise/block_io.h"

#include <algorithm>

namespace weft::kernels {
namespace {

/// Copies a block's rows between a tensor and `packed`, where they lie side by side.
template <bool kGather>
void move_rows(const Walk& walk, int operand, const Block& block, void* tensor, void* packed,
               size_t itemsize) {
  with_word(itemsize, [&]<class Word>(Word) {
    Word* side = static_cast<Word*>(packed);
    const int64_t stride = walk.stride(operand), n = block.columns;
    walk.for_each_row(operand, block, [&](int64_t offset) {
      Word* const row = static_cast<Word*>(tensor) + offset;
      if (stride == 1) {
        kGather ? std::copy_n(row, n, side) : std::copy_n(side, n, row);
      } else if (kGather && stride == 0) {
        std::fill_n(side, n, *row);
      } else if (stride == -1) {
        kGather ? std::reverse_copy(row - (n - 1), row + 1, side)
                : std::reverse_copy(side, side + n, row - (n - 1));
      } else {
        for (int64_t i = 0; i < n; ++i) {
          Word &element = row[i * stride], &copy = side[i];
          kGather ? copy = element : element = copy;
        }
      }
      side += n;
    });
  });
}

}  // namespace

void* BlockIo::in_place(const Block& block) const {
  if (!walk_.is_dense(operand_) && (block.rows > 1 || walk_.stride(operand_) != 1)) return nullptr;
  void* first = nullptr;
  walk_.for_each_row(operand_, {block.row, 1, block.column, block.columns}, [&](int64_t offset) {
    first = static_cast<char*>(tensor_) + offset * static_cast<int64_t>(itemsize(dtype_));
  });
  return first;
}

const void* BlockIo::read(const Block& block) {
  if (walk_.is_constant(operand_)) {
    if (!constant_is_read_) {
      with_word(itemsize(dtype_), [&]<class Word>(Word) {
        std::fill_n(reinterpret_cast<Word*>(stored_), kBlock, *static_cast<const Word*>(tensor_));
      });
      convert(stored_, dtype_, seen_, as_, kBlock);
      constant_is_read_ = true;
    }
    return seen_;
  }
  const void* elements = in_place(block);
  if (!elements) {
    move_rows<true>(walk_, operand_, block, tensor_, stored_, itemsize(dtype_));
    elements = stored_;
  }
  if (dtype_ == as_) return elements;
  convert(elements, dtype_, seen_, as_, block.size());
  return seen_;
}

void* BlockIo::target(const Block& block) {
  void* const elements = dtype_ == as_ ? in_place(block) : nullptr;
  return elements ? elements : seen_;
}

void BlockIo::commit(const Block& block) {
  void* const elements = in_place(block);
  void* const result = elements ? elements : dtype_ == as_ ? seen_ : stored_;
  if (dtype_ != as_) convert(seen_, as_, result, dtype_, block.size());
  if (!elements) move_rows<false>(walk_, operand_, block, tensor_, result, itemsize(dtype_));
}

}  // namespace weft::kernels
