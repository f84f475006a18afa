#include "kernels/elementwise/block_io.h"

#include <algorithm>
#include <cstring>

#include "kernels/elementwise/word.h"

namespace weft::kernels {
namespace {

/// The block where it lies side by side in memory; null where it does not.
template <class Bytes>
Bytes* in_place(const Walk& walk, int operand, const Block& block, Bytes* base, size_t itemsize) {
  if (!walk.is_dense(operand) && (block.rows > 1 || walk.stride(operand) != 1)) return nullptr;
  Bytes* first = nullptr;
  walk.for_each_row(operand, {block.row, 1, block.column, block.columns}, [&](int64_t offset) {
    first = base + offset * static_cast<int64_t>(itemsize);
  });
  return first;
}

void gather(const Walk& walk, int operand, const Block& block, const void* base, void* target,
            size_t itemsize) {
  with_word(itemsize, [&](auto tag) {
    using Word = decltype(tag);
    Word* out = static_cast<Word*>(target);
    const int64_t stride = walk.stride(operand), n = block.columns;
    walk.for_each_row(operand, block, [&](int64_t offset) {
      const Word* row = static_cast<const Word*>(base) + offset;
      if (stride == 1) {
        std::copy_n(row, n, out);
      } else if (stride == 0) {
        std::fill_n(out, n, *row);
      } else {
        for (int64_t i = 0; i < n; ++i) out[i] = row[i * stride];
      }
      out += n;
    });
  });
}

void scatter(const Walk& walk, int operand, const Block& block, const void* source, void* base,
             size_t itemsize) {
  with_word(itemsize, [&](auto tag) {
    using Word = decltype(tag);
    const Word* in = static_cast<const Word*>(source);
    const int64_t stride = walk.stride(operand), n = block.columns;
    walk.for_each_row(operand, block, [&](int64_t offset) {
      Word* row = static_cast<Word*>(base) + offset;
      if (stride == 1) {
        std::copy_n(in, n, row);
      } else {
        for (int64_t i = 0; i < n; ++i) row[i * stride] = in[i];
      }
      in += n;
    });
  });
}

}  // namespace

const void* BlockReader::read(const Block& block) {
  if (walk_.is_constant(operand_)) {
    if (!constant_is_read_) {
      with_word(itemsize(dtype_), [&](auto tag) {
        using Word = decltype(tag);
        std::fill_n(reinterpret_cast<Word*>(gathered_), kBlock, *static_cast<const Word*>(tensor_));
      });
      convert(gathered_, dtype_, converted_, as_, kBlock);
      constant_is_read_ = true;
    }
    return converted_;
  }
  const void* elements =
      in_place(walk_, operand_, block, static_cast<const char*>(tensor_), itemsize(dtype_));
  if (!elements) {
    gather(walk_, operand_, block, tensor_, gathered_, itemsize(dtype_));
    elements = gathered_;
  }
  if (dtype_ == as_) return elements;
  convert(elements, dtype_, converted_, as_, block.size());
  return converted_;
}

void* BlockWriter::target(const Block& block) {
  if (dtype_ != as_) return computed_;
  void* elements = in_place(walk_, operand_, block, static_cast<char*>(tensor_), itemsize(dtype_));
  return elements ? elements : computed_;
}

void BlockWriter::commit(const Block& block) {
  void* elements = in_place(walk_, operand_, block, static_cast<char*>(tensor_), itemsize(dtype_));
  if (dtype_ == as_) {
    if (!elements) scatter(walk_, operand_, block, computed_, tensor_, itemsize(dtype_));
    return;
  }
  convert(computed_, as_, elements ? elements : converted_, dtype_, block.size());
  if (!elements) scatter(walk_, operand_, block, converted_, tensor_, itemsize(dtype_));
}

}  // namespace weft::kernels
