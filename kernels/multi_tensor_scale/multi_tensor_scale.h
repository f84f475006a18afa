// A list of tensors multiplied by a number in place, and told whether all of it was finite.
//
//   nonfinite = some element of some tensor is infinite or NaN, before the multiplication
//   x = x * factor                 for every element, rounded once to x's dtype
//
// Tensors are contiguous and f64, f32, bf16 or f16, in any mixture; factor is rounded to f32 (f64
// for f64) first. nonfinite, if given, is a scalar [] of dtype bool and assigned (=). With a factor
// of 1 nothing is written but nonfinite.
#pragma once

#include "kernels/op.h"

namespace weft::kernels {

struct MultiTensorScaleProblem {
  std::vector<Tensor> tensors;
  double factor = 1;
  Tensor nonfinite;  // optional

  DType dtype() const { return tensors.empty() ? DType::f32 : tensors[0].dtype(); }
  Device device() const { return tensors.empty() ? Device{} : tensors[0].device(); }
  std::string describe() const;
};

void multi_tensor_scale(const MultiTensorScaleProblem& problem);
const Op<MultiTensorScaleProblem>& multi_tensor_scale_op();
std::vector<Expected> multi_tensor_scale_reference(const MultiTensorScaleProblem& problem);

}  // namespace weft::kernels
