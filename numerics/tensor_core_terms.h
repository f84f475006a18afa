// What the scalar and the vectorised model of a tensor core share: how an operand reaches it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/dtype.h"

namespace weft::numerics {

/// The smallest normal exponent of an operand format.
inline int smallest_exponent(DType input) {
  switch (input) {
    case DType::f16:
    case DType::f8e5m2:
      return -14;
    case DType::f8e4m3:
      return -6;
    default:
      return -126;  // bf16 and tf32 have f32's
  }
}

/// A value as the tensor core sees it: its operand format keeps what that format holds. Conversions
/// round to nearest even; tf32 operands are f32 registers whose low 13 bits are not read.
inline float to_operand(float x, DType input) {
  switch (input) {
    case DType::f16:
      return static_cast<float>(f16(x));
    case DType::bf16:
      return static_cast<float>(bf16(x));
    case DType::f8e4m3:
      return static_cast<float>(f8e4m3(x));
    case DType::f8e5m2:
      return static_cast<float>(f8e5m2(x));
    default:
      return std::isnan(x) ? x : std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0xffffe000u);
  }
}

/// A value rounded to nearest even to the format of c and d.
inline float to_accumulator(double x, DType output) {
  return output == DType::f16 ? static_cast<float>(from_double<f16>(x)) : static_cast<float>(x);
}

/// All mantissa bits set, no sign: 0x7FFFFFFF, or f16's 0x7FFF widened.
inline float tensor_core_nan(DType output) {
  return std::bit_cast<float>(output == DType::f16 ? 0x7fffe000u : 0x7fffffffu);
}

/// c + sum on the general cores: rounded to nearest even, NaN as the tensor core gives it.
inline float add_to_accumulator(float c, float sum, DType output) {
  const double total = static_cast<double>(c) + static_cast<double>(sum);
  return std::isnan(total) ? tensor_core_nan(output) : to_accumulator(total, output);
}

/// The index in [0, block) of the product that the hardware sums as the i-th of a split block:
/// those with even i / 2 first.
inline int split_position(int i, int block) {
  const int half = block / 2, pair = i % half / 2;
  return 4 * pair + (i < half ? 0 : 2) + i % 2;
}

}  // namespace weft::numerics
