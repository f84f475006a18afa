// Blocks of a walk read as one type and written from it: what lies between memory of any dtype and
// strides and a loop over 1024 elements of one type.
//
//   const Walk walk({y, x});
//   transform_blocks(walk, {y, DType::f32}, {{x, DType::f32}},
//                    [](const void* x, void* y, int64_t n) { ... });
#pragma once

#include <utility>

#include "kernels/elementwise/convert.h"
#include "kernels/elementwise/walk.h"

namespace weft::kernels {

/// One operand of a walk, read or written as one type.
class BlockIo {
 public:
  BlockIo(const Walk& walk, int operand, const Tensor& tensor, DType as)
      : walk_(walk), tensor_(tensor.raw()), dtype_(tensor.dtype()), as_(as), operand_(operand) {}

  /// The block's elements as `as`, in the order of the walk: the tensor's memory where it holds
  /// them so, else a buffer of this object, valid until the next call.
  const void* read(const Block& block);
  /// Where the block's elements are to be put, as `as`, before commit(block) takes them home.
  void* target(const Block& block);
  void commit(const Block& block);

 private:
  /// The block where it lies side by side in memory; null where it does not.
  void* in_place(const Block& block) const;

  const Walk& walk_;
  void* tensor_;
  DType dtype_, as_;
  int operand_;
  bool constant_is_read_ = false;
  alignas(64) unsigned char stored_[kBlock * sizeof(double)];  // in the tensor's dtype
  alignas(64) unsigned char seen_[kBlock * sizeof(double)];    // as `as`
};

/// Blocks that a thread takes at a time.
inline constexpr int64_t kBlocksPerTask = 16;

/// A tensor, and the type that a loop sees its elements in.
struct BlockOperand {
  const Tensor& tensor;
  DType as;
};

/// Calls loop(x..., y, n) for the blocks of a walk over {y, x...}, on all threads: n elements of
/// every input, and where those of the output are to be put. Memory that holds them all as the loop
/// wants them is given in longer pieces.
template <size_t N, class Loop>
void transform_blocks(const Walk& walk, const BlockOperand& y, const BlockOperand (&x)[N],
                      Loop&& loop) {
  const auto is_ready = [&](const BlockOperand& o, int operand) {
    return o.tensor.dtype() == o.as && walk.is_dense(operand);
  };
  const auto at = [](const BlockOperand& o, int64_t i) {
    return static_cast<char*>(o.tensor.raw()) + i * static_cast<int64_t>(itemsize(o.as));
  };
  const auto run = [&]<size_t... I>(std::index_sequence<I...>) {
    if (walk.numel() > 0 && is_ready(y, 0) && (is_ready(x[I], I + 1) && ...)) {
      return parallel_for(walk.numel(), kBlocksPerTask * kBlock, [&](int64_t begin, int64_t end) {
        loop(at(x[I], begin)..., at(y, begin), end - begin);
      });
    }
    parallel_for(walk.blocks(), kBlocksPerTask, [&](int64_t first, int64_t last) {
      BlockIo inputs[] = {BlockIo(walk, I + 1, x[I].tensor, x[I].as)...};
      BlockIo output(walk, 0, y.tensor, y.as);
      for (int64_t i = first; i < last; ++i) {
        const Block block = walk.block(i);
        loop(inputs[I].read(block)..., output.target(block), block.size());
        output.commit(block);
      }
    });
  };
  run(std::make_index_sequence<N>());
}

}  // namespace weft::kernels
