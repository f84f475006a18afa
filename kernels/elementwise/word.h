// Elements moved as bits: the unsigned integer of their size.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::kernels {

/// Calls f with a zero of the unsigned type of so many bytes: 1, 2, 4 or 8.
template <class F>
void with_word(size_t bytes, F&& f) {
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

}  // namespace weft::kernels
