// A list of tensors multiplied by a number in place, checked, and measured, in one pass: clipping
// gradients, or bringing scaled ones back to size.
//
//   found_inf = 1 if some element of some tensor is infinite or NaN before the multiplication, or 0
//   x = x * factor                       for every element, rounded once to x's dtype
//   norm = sqrt(sum of x^2)              over all elements as written
//
// With the inverse of a loss scale for a factor that is PyTorch's
// _amp_foreach_non_finite_check_and_unscale_ with the norm that clipping needs.
//
// Tensors are contiguous and f64, f32, bf16 or f16, in any mixture; factor is rounded to f32 (f64
// for f64) first. factor_from, an f32 scalar [], takes its place with the value that it has when
// the work runs: no host needs to know it. found_inf is a scalar [] of dtype f32, norm one of f32
// or f64; both are optional and assigned (=). With a factor of 1 no element is written. Squares are
// taken and added in f64 over fixed chunks that are joined in order, so that the norm neither
// overflows early nor depends on threads; it is infinite or NaN when an element is.
#pragma once

#include "kernels/op.h"

namespace weft::kernels {

struct MultiTensorScaleProblem {
  std::vector<Tensor> tensors;
  double factor = 1;
  Tensor factor_from;  // optional
  Tensor found_inf;    // optional
  Tensor norm;         // optional

  DType dtype() const { return tensors.empty() ? DType::f32 : tensors[0].dtype(); }
  Device device() const { return tensors.empty() ? Device{} : tensors[0].device(); }
  std::string describe() const {
    return fmt::format("multi_tensor_scale({} tensors, factor={})", tensors.size(),
                       factor_from.defined() ? "from memory" : fmt::format("{}", factor));
  }
};

WEFT_DECLARE_OP(multi_tensor_scale, MultiTensorScaleProblem);

}  // namespace weft::kernels
