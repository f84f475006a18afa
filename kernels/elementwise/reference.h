// What references of elementwise ops share.
#pragma once

#include <algorithm>
#include <cmath>

#include "numerics/error_bounds.h"

namespace weft::kernels {

/// A number of arithmetic type f64, f32 or i64 as it reads after being stored in dtype `to` (see
/// kernels/copy/copy.h). Integers below 2^53.
inline double as_stored(double value, DType from, DType to) {
  if (to == DType::boolean) return value != 0;
  if (is_floating(to)) return numerics::round_to(value, to);
  const int bits = 8 * static_cast<int>(itemsize(to));
  const bool is_unsigned = to == DType::u8;
  if (!is_floating(from)) {
    if (to == DType::i64) return value;
    const double range = std::ldexp(1.0, bits);
    const double wrapped = value - range * std::floor(value / range);
    return is_unsigned || wrapped < range / 2 ? wrapped : wrapped - range;
  }
  if (std::isnan(value)) return 0;
  const double low = is_unsigned ? 0 : -std::ldexp(1.0, bits - 1);
  const double high = std::ldexp(1.0, is_unsigned ? bits : bits - 1) - 1;
  return std::clamp(std::trunc(value), low, high);
}

using Real = long double;

inline Real sigmoid(Real x) { return 1 / (1 + std::exp(-x)); }

/// A value and its error: in units of f32's roundoff (f64's), and in its smallest subnormals.
struct Approximate {
  Real value = 0, units = 0, subnormals = 0;

  double error(bool f64) const {
    return static_cast<double>(units * (f64 ? 0x1p-53L : 0x1p-24L) +
                               subnormals * (f64 ? 0x1p-1074L : 0x1p-149L));
  }
};

/// A result rounded to the arithmetic type: to f32, or left alone.
inline double rounded_to(double value, DType arithmetic_type) {
  return arithmetic_type == DType::f32 ? static_cast<double>(static_cast<float>(value)) : value;
}

}  // namespace weft::kernels
