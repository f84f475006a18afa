// Blocks of a walk read as one type and written from it: what lies between memory of any dtype and
// strides and a loop over 1024 elements of one type.
//
//   BlockReader x(walk, 1, tensor, DType::f32);
//   BlockWriter y(walk, 0, output, DType::f32);
//   const void* in = x.read(block);
//   void* out = y.target(block);
//   loop(in, out, block.size());
//   y.commit(block);
#pragma once

#include "kernels/elementwise/convert.h"
#include "kernels/elementwise/walk.h"

namespace weft::kernels {

class BlockReader {
 public:
  BlockReader(const Walk& walk, int operand, const Tensor& tensor, DType as)
      : walk_(walk), tensor_(tensor.raw()), dtype_(tensor.dtype()), as_(as), operand_(operand) {}

  /// The block's elements as `as`, in the order of the walk: the tensor's memory where it holds
  /// them so, else a buffer of this reader, valid until the next call.
  const void* read(const Block& block);

 private:
  const Walk& walk_;
  const void* tensor_;
  DType dtype_, as_;
  int operand_;
  bool constant_is_read_ = false;
  alignas(64) unsigned char gathered_[kBlock * sizeof(double)];
  alignas(64) unsigned char converted_[kBlock * sizeof(double)];
};

class BlockWriter {
 public:
  BlockWriter(const Walk& walk, int operand, const Tensor& tensor, DType as)
      : walk_(walk), tensor_(tensor.raw()), dtype_(tensor.dtype()), as_(as), operand_(operand) {}

  /// Where the block's elements are to be put, as `as`, before commit(block) takes them home.
  void* target(const Block& block);
  void commit(const Block& block);

 private:
  const Walk& walk_;
  void* tensor_;
  DType dtype_, as_;
  int operand_;
  alignas(64) unsigned char computed_[kBlock * sizeof(double)];
  alignas(64) unsigned char converted_[kBlock * sizeof(double)];
};

}  // namespace weft::kernels
