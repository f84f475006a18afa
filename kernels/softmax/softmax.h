// Softmax and log-softmax along one axis, and their gradients.
//
//   y = exp(x - max(x)) / sum(exp(x - max(x)))            log: y = x - max(x) - log(sum(...))
//   dx = y * (dy - sum(dy * y))                           log: dx = dy - exp(y) * sum(dy)
//
// x, y, dy, dx: the same shape and dtype (f64 f32 f16 bf16), any strides; y and dx are assigned
// (=). Arithmetic is in f32 (f64 for f64) whatever the dtype; a row of -inf gives NaN, as in
// PyTorch.
#pragma once

#include "kernels/op.h"

namespace weft::kernels {

struct SoftmaxProblem {
  Tensor x;       // forward only: the input
  Tensor y;       // forward: the output; backward: the forward's output
  Tensor dy, dx;  // backward only: the input and the output
  int axis = -1;  // wrapped by the op; -1 is the last
  bool log = false;

  bool backward() const { return dx.defined(); }
  DType dtype() const { return y.dtype(); }
  Device device() const { return y.device(); }
  std::string describe() const;

  // For autotuning (kernels/op.h).
  std::string tuning_key() const;
  std::vector<Tensor> written() const;
};

/// Whether cuDNN can compute it: contiguous tensors of up to 2^31 - 1 elements, and some; and the
/// library was found.
bool softmax_fits_cudnn(const SoftmaxProblem& problem);

WEFT_DECLARE_OP(softmax, SoftmaxProblem);

}  // namespace weft::kernels
