// Conversion of side-by-side elements between any two dtypes, as kernels/copy/copy.h defines it.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace weft::kernels {

/// y[0..n) = x[0..n) converted; x and y may be the same memory only when from == to.
void convert(const void* x, DType from, void* y, DType to, int64_t n);

/// The type that arithmetic on a dtype is done in: f64 for f64, f32 for the other floats, i64 for
/// integers and bool.
inline DType arithmetic_type(DType dtype) {
  if (!is_floating(dtype)) return DType::i64;
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}
inline DType arithmetic_type(DType a, DType b) {
  const DType x = arithmetic_type(a), y = arithmetic_type(b);
  if (x == DType::f64 || y == DType::f64) return DType::f64;
  return x == DType::f32 || y == DType::f32 ? DType::f32 : DType::i64;
}

}  // namespace weft::kernels
