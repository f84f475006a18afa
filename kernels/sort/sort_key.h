// An element's place in the order as an unsigned integer: what the variants compare.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "core/dtype.h"

namespace weft::kernels {

/// The integer whose order is that of the numbers: their bits, the sign turned so that negative
/// ones come first and in reverse. Both zeros have one key, and all NaN the largest.
template <class Bits, class Value>
constexpr Bits ordered_bits(Bits bits, Value value) {
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1), kAll = static_cast<Bits>(~Bits{0});
  if (value != value) return kAll;
  if (value == 0) bits = 0;
  return bits & kSign ? bits ^ kAll : bits | kSign;
}
constexpr uint32_t ordered_bits(float x) { return ordered_bits(std::bit_cast<uint32_t>(x), x); }
constexpr uint64_t ordered_bits(double x) { return ordered_bits(std::bit_cast<uint64_t>(x), x); }
constexpr uint64_t ordered_bits(int64_t x) {
  return static_cast<uint64_t>(x) ^ uint64_t { 1 } << 63;
}

/// Of an element of any dtype: 32 bits where it has no more.
template <class T>
constexpr auto sort_key(T x) {
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, int64_t>) {
    return ordered_bits(x);
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<uint32_t>(static_cast<int32_t>(x)) ^ uint32_t { 1 } << 31;
  } else {
    return ordered_bits(static_cast<float>(x));
  }
}

/// Of an element of 8 or 16 bits in as many.
template <class T>
constexpr auto narrow_sort_key(T x) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<uint8_t>(x);
  } else {
    return ordered_bits(x.bits, static_cast<float>(x));
  }
}

}  // namespace weft::kernels
