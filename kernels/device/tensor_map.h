// Descriptions of tensors for TMA: CUtensorMap on a GPU, the same facts on the emulator.
//
// A kernel takes a TensorMap by value as `const __grid_constant__ TensorMap map` and passes &map
// on.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/dtype.h"

#ifdef __CUDACC__
#include <cuda.h>
#else
#include "kernels/simt/async.h"
#endif

namespace weft {

#ifdef __CUDACC__
using TensorMap = CUtensorMap;
#else
using TensorMap = simt::TensorMap;
#endif

/// The rows of shared memory that TMA swizzles: chunks of 16 bytes are permuted within 8 rows of so
/// many bytes, so that a column of them meets all banks.
enum class TmaSwizzle : uint8_t { kNone, kBytes32, kBytes64, kBytes128 };

/// Dimension 0 is the innermost and dense. Strides in bytes, of dimensions 1 and up.
struct TensorMapSpec {
  static constexpr int kMaxRank = 5;
  const void* base = nullptr;
  DType dtype = DType::bf16;
  int rank = 2;
  uint64_t dims[kMaxRank] = {};
  uint64_t strides[kMaxRank - 1] = {};
  uint32_t box[kMaxRank] = {};
  TmaSwizzle swizzle = TmaSwizzle::kNone;
};

/// Can TMA address such a tensor? Base a multiple of 16, strides of 16 and below 2^40; sizes below
/// 2^32.
bool tma_takes(const TensorMapSpec& spec);

/// Throws Error when TMA cannot take the tensor or the box: boxes have 1 to 256 elements in each
/// dimension, rows of a multiple of 16 bytes that are no longer than the swizzle.
TensorMap make_tensor_map(const TensorMapSpec& spec);

}  // namespace weft
