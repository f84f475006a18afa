// What cuTensorMapEncodeTiled demands, for both implementations of make_tensor_map.
#pragma once

#include "core/error.h"
#include "kernels/device/tensor_map.h"

namespace weft {

inline bool tma_takes(const TensorMapSpec& spec) {
  if (reinterpret_cast<uintptr_t>(spec.base) % 16 != 0) return false;
  for (int d = 0; d < spec.rank; ++d) {
    if (spec.dims[d] == 0 || spec.dims[d] > uint64_t{1} << 32) return false;
    if (d > 0 && (spec.strides[d - 1] % 16 != 0 || spec.strides[d - 1] >= uint64_t{1} << 40)) {
      return false;
    }
  }
  return true;
}

inline void check_tensor_map(const TensorMapSpec& spec) {
  constexpr uint32_t kMaxBox = 256;
  WEFT_CHECK(spec.rank >= 1 && spec.rank <= TensorMapSpec::kMaxRank,
             "tensor map: rank {}, expected 1 to {}", spec.rank, TensorMapSpec::kMaxRank);
  WEFT_CHECK(
      tma_takes(spec),
      "tensor map: base {}, dims {} x {}, row stride {}: expected a base and strides that are "
      "multiples of 16 bytes",
      spec.base, spec.dims[0], spec.dims[1], spec.strides[0]);
  for (int d = 0; d < spec.rank; ++d) {
    WEFT_CHECK(spec.box[d] >= 1 && spec.box[d] <= kMaxBox,
               "tensor map: a box of {} in dimension {}, expected 1 to {}", spec.box[d], d,
               kMaxBox);
  }
  const size_t row = spec.box[0] * itemsize(spec.dtype);
  const size_t widest = spec.swizzle == TmaSwizzle::kNone
                            ? size_t{kMaxBox} * 16
                            : size_t{16} << static_cast<int>(spec.swizzle);
  WEFT_CHECK(row % 16 == 0 && row <= widest,
             "tensor map: box rows of {} bytes, expected a multiple of 16 up to {}", row, widest);
}

}  // namespace weft
