// The emulated device's side of tensor_map.h.
#include <algorithm>

#include "kernels/device/tensor_map_check.h"

namespace weft {

TensorMap make_tensor_map(const TensorMapSpec& spec) {
  check_tensor_map(spec);
  TensorMap map;
  map.base = const_cast<void*>(spec.base);
  map.rank = spec.rank;
  map.element_bytes = itemsize(spec.dtype);
  std::copy_n(spec.dims, spec.rank, map.dims);
  std::copy_n(spec.box, spec.rank, map.box);
  map.strides[0] = map.element_bytes;
  std::copy_n(spec.strides, spec.rank - 1, map.strides + 1);
  map.swizzle = static_cast<simt::Swizzle>(spec.swizzle);
  return map;
}

}  // namespace weft
