// Reads elements of what a fuzz target accepted, so that AddressSanitizer sees a view that reaches
// too far.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/tensor.h"

namespace weft::fuzz {

/// The first and the last element of each tensor, and of small ones all; bools must be 0 or 1.
inline void touch(const NamedTensors& tensors) {
  constexpr int64_t kMost = 4096;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.numel() == 0) continue;
    const auto* first = static_cast<const volatile unsigned char*>(tensor.raw());
    const auto width = static_cast<int64_t>(tensor.itemsize());
    int64_t last = 0;
    for (int d = 0; d < tensor.dim(); ++d) last += (tensor.shape()[d] - 1) * tensor.strides()[d];
    unsigned sum = first[0] + first[(last + 1) * width - 1];
    if (tensor.numel() <= kMost) {
      const bool is_bool = tensor.dtype() == DType::boolean;
      for_each_offset(tensor.shape(), tensor.strides(), [&](int64_t offset) {
        for (int64_t b = 0; b < width; ++b) sum += first[offset * width + b];
        if (is_bool && first[offset] > 1) std::abort();
      });
    }
    if (sum == 0xffffffff) std::abort();  // the sum is used
  }
}

}  // namespace weft::fuzz
