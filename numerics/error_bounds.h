// Rounding-error bounds that kernel tests use as tolerances. None is tuned: each follows from the
// standard model fl(a op b) = (a op b)(1 + d), |d| <= u, in Higham, "Accuracy and Stability of
// Numerical Algorithms", 2nd edition, chapters 2 and 3.
#pragma once

#include <cmath>
#include <limits>

#include "core/dtype.h"

namespace weft::numerics {

/// gamma_n = n u / (1 - n u): relative error of n successive roundings (Higham, lemma 3.1).
inline double gamma(double n, double u) { return n * u / (1 - n * u); }

/// Smallest positive subnormal of a format: an absolute error of half of it is possible in any
/// result near zero.
inline double smallest_subnormal(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return std::numeric_limits<double>::denorm_min();
    case DType::f32:
      return 0x1p-149;
    case DType::tf32:
      return 0x1p-136;
    case DType::f16:
      return 0x1p-24;
    case DType::bf16:
      return 0x1p-133;
    case DType::f8e4m3:
      return 0x1p-9;
    case DType::f8e5m2:
      return 0x1p-16;
    default:
      return 0;
  }
}

/// The number of the format that storing x gives: the nearest, ties to even (tf32: away).
inline double round_to(double x, DType dtype) {
  return visit_dtype(
      dtype, [&](auto tag) { return to_double(from_double<typename decltype(tag)::type>(x)); });
}

/// Largest error of rounding a value of this magnitude to the format.
inline double rounding_error(double magnitude, DType dtype) {
  return magnitude * unit_roundoff(dtype) + smallest_subnormal(dtype);
}

/// How far from `value` a result may lie that was off by `error` before it was rounded to the
/// format; 0, equality, where it is not finite.
inline double stored_bound(double value, double error, DType dtype) {
  return std::isfinite(value) ? error + rounding_error(std::abs(value) + error, dtype) : 0;
}

/// Sum of n terms in any order with unit roundoff u: gamma_{n-1} sum|x| (Higham, section 4.2).
/// n is the number of roundings: terms - 1 of a plain sum; magnitude is sum|x|, or sum|a||b| of a
/// dot product, which has as many roundings as terms.
inline double sum_bound(double n, double u, double magnitude) { return gamma(n, u) * magnitude; }

}  // namespace weft::numerics
