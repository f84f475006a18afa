// One element converted from any dtype to any other, as kernels/copy/copy.h defines it: what the
// conversions of whole blocks on the CPU and of single elements on a GPU share. Everything is
// constexpr, so that device code may call it.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/dtype.h"

namespace weft::kernels {

/// bool as stored: any nonzero byte is true.
template <class T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;

/// A float to an integer: toward zero, saturating, NaN to 0.
template <class To, class From>
constexpr To saturate(From x) {
  using Limits = std::numeric_limits<To>;
  // The first floating number beyond To: 2^31, 2^63, ...
  constexpr From kBeyond = static_cast<From>(Limits::max() / 2 + 1) * From{2};
  if (x != x) return 0;
  if (x >= kBeyond) return Limits::max();
  if (x <= static_cast<From>(Limits::min())) return Limits::min();
  return static_cast<To>(x);
}

/// A double as a float rounded to odd: of the two floats around x the one with an odd last bit, so
/// that rounding it once more, to a narrower format, rounds x correctly.
constexpr float round_to_odd(double x) {
  const float y = static_cast<float>(x);
  const uint32_t bits = std::bit_cast<uint32_t>(y);
  const bool is_finite = (bits & 0x7f800000u) != 0x7f800000u;
  if (static_cast<double>(y) == x || !is_finite) return y;
  const double magnitude = x < 0 ? -x : x;
  const double rounded = std::bit_cast<float>(bits & 0x7fffffffu);
  // Rounded away from zero: one step back. Both neighbours of an inexact x differ in the last bit.
  return std::bit_cast<float>((rounded > magnitude ? bits - 1 : bits) | 1u);
}

/// An i64 as a narrow float, rounded once: low bits that a double cannot hold are joined into one
/// that is out of the narrow format's sight.
template <class To>
constexpr To narrow_integer(int64_t x) {
  uint64_t magnitude = x < 0 ? 0 - static_cast<uint64_t>(x) : static_cast<uint64_t>(x);
  if (magnitude >> 53) {
    constexpr uint64_t kLow = (uint64_t{1} << 14) - 1;
    magnitude = (magnitude & ~kLow) | ((magnitude & kLow) ? (kLow + 1) / 2 : 0);
  }
  const double value = static_cast<double>(magnitude);
  return To(round_to_odd(x < 0 ? -value : value));
}

template <class From, class To>
constexpr Stored<To> convert_element(Stored<From> x) {
  if constexpr (std::is_same_v<To, bool>) {
    if constexpr (std::is_arithmetic_v<From>)
      return x != 0;
    else
      return static_cast<float>(x) != 0;
  } else if constexpr (std::is_same_v<From, bool>) {
    return convert_element<int64_t, To>(x != 0);
  } else if constexpr (std::is_same_v<From, To>) {
    return x;
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    return saturate<To>(x);
  } else if constexpr (std::is_arithmetic_v<From> && std::is_arithmetic_v<To>) {
    return static_cast<To>(x);
  } else if constexpr (std::is_integral_v<From>) {
    return narrow_integer<To>(x);
  } else if constexpr (std::is_same_v<From, double>) {
    return To(round_to_odd(x));
  } else if constexpr (std::is_same_v<From, float>) {
    return To(x);
  } else {
    return convert_element<float, To>(static_cast<float>(x));
  }
}

}  // namespace weft::kernels
