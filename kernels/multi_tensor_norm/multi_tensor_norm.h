// The 2-norm of all elements of a list of tensors, or of each of them.
//
//   norm = sqrt(sum over tensors and elements of x^2)         norm []
//   norm[i] = sqrt(sum over the elements of tensor i of x^2)   norm [tensors], with the same bits
//                                                              as for a list of tensor i alone
//
// Tensors are f64, f32, bf16 or f16, in any mixture, of any strides. Squares are taken and added in
// f64 over fixed chunks that are joined in order, so that the result neither overflows early nor
// depends on threads. norm is of dtype f32 or f64, [tensors] f64 and contiguous, and assigned (=);
// it is 0 for no elements, and infinite or NaN when an element is.
#pragma once

#include "kernels/op.h"

namespace weft::kernels {

struct MultiTensorNormProblem {
  std::vector<Tensor> tensors;
  Tensor norm;

  DType dtype() const { return tensors.empty() ? DType::f32 : tensors[0].dtype(); }
  Device device() const { return norm.device(); }
  bool is_of_each() const { return norm.dim() == 1; }
  std::string describe() const {
    return fmt::format("multi_tensor_norm({} tensors)", tensors.size());
  }
};

WEFT_DECLARE_OP(multi_tensor_norm, MultiTensorNormProblem);

}  // namespace weft::kernels
