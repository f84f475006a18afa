// Reductions of a tensor over any set of its axes.
//
//   y[k] = op over all r of x[k, r]        k: the kept axes, r: the reduced ones
//
//   sum, prod        floats: y floating; integers and bool: y i64, modulo 2^64. Empty: 0, 1.
//   mean             y floating. Empty: NaN.
//   var              sum((x - mean)^2) / max(0, n - correction); y floating. 0 / 0 is NaN.
//   sum_squares      sum(x^2), as sum.
//   max, min         y of x's dtype; a NaN among the elements is the result. Never empty.
//   argmax, argmin   y i64: the place of the first maximum among the reduced axes in row-major
//                    order; a NaN counts as the extreme. Never empty.
//   any, all         y bool: whether some, or each, element is not 0 (NaN is not). Empty: false,
//                    true.
//
// The axes are those of y's shape: y has as many dimensions as x, and size 1 where it is reduced
// (what PyTorch calls keepdim; view::squeeze or view::reshape drops them). A reduced axis of size 1
// needs no telling apart from a kept one. Any strides of both; y is assigned (=).
//
// Floating sums are taken in f32 (f64 for f64) over so few elements that none passes through more
// than 24 additions; those sums are added in f64 in a fixed order, and y is rounded once.
#pragma once

#include "kernels/op.h"

namespace weft::kernels {

enum class Reduction {
  kSum,
  kMean,
  kProd,
  kVar,
  kSumSquares,
  kMax,
  kMin,
  kArgmax,
  kArgmin,
  kAny,
  kAll
};

std::string_view name(Reduction reduction);
/// Whether the result is the place of an element.
constexpr bool gives_place(Reduction r) {
  return r == Reduction::kArgmax || r == Reduction::kArgmin;
}
/// Whether the result is an element, or its place.
constexpr bool selects(Reduction r) { return r >= Reduction::kMax && r <= Reduction::kArgmin; }
constexpr bool wants_largest(Reduction r) {
  return r == Reduction::kMax || r == Reduction::kArgmax;
}

struct ReduceProblem {
  Tensor x;
  Tensor y;
  Reduction reduction = Reduction::kSum;
  double correction = 1;  // of var: 1 is Bessel's, 0 the population's variance

  DType dtype() const { return x.dtype(); }
  Device device() const { return x.device(); }
  std::string describe() const;
};

WEFT_DECLARE_OP(reduce, ReduceProblem);

}  // namespace weft::kernels
