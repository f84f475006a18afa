// Layer normalisation over the last dimension, with the residual addition fused as an option, and
// its gradients.
//
//   s = x + residual                       (s = x without a residual)
//   mean = sum(s) / N                      rstd = 1 / sqrt(sum((s - mean)^2) / N + eps)
//   y = (s - mean) * rstd * gamma + beta   (gamma = 1, beta = 0 where absent)
//
//   h = (s - mean) * rstd                  g = dy * gamma
//   dx = rstd * (g - sum(g) / N - h * sum(g * h) / N) + ds      dresidual = dx
//   dgamma = sum over rows of dy * h       dbeta = sum over rows of dy
//
// Ba, Kiros, Hinton: "Layer Normalization", arXiv:1607.06450.
//
// Shapes: x, residual, sum, y, dy, ds, dx, dresidual [..., N]; mean, rstd: x's without the last
// dimension; gamma, beta, dgamma, dbeta [N]; N > 0. Any strides; rows whose last dimension is
// contiguous are read in place. Dtypes: f32, bf16 and f16 in any mixture, or all f64. Arithmetic is
// in f32 (f64 for f64) whatever the dtypes; mean and rstd are f32 (f64). When `sum` is written in a
// narrow dtype, the rounded values are the ones that are normalised, so that backward sees what
// forward saw. dx and dresidual, the gradients of two operands of different dtypes, are each
// rounded from the arithmetic's. dgamma and dbeta are sums over fixed chunks of rows, joined in
// order in f64. Every output is assigned (=); y may be x's memory, dx may be dy's.
#pragma once

#include "kernels/op.h"

namespace weft::kernels {

struct LayerNormProblem {
  Tensor x;         // backward: what forward normalised, that is s
  Tensor residual;  // forward, optional
  Tensor gamma;     // optional
  Tensor beta;      // forward, optional
  Tensor sum;       // forward: s, assigned; required with a residual, absent without
  Tensor y;         // forward: the output
  Tensor mean;      // forward: assigned, or absent together with rstd; backward: forward's
  Tensor rstd;
  Tensor dy;  // backward: the gradient of y
  Tensor ds;  // backward, optional: another gradient of s, that of the residual stream
  Tensor dx;  // backward, optional: the gradient of x and, where they share a dtype, of residual
  Tensor dresidual;  // backward, optional beside dx: the gradient of a residual of another dtype
  Tensor dgamma;     // backward, optional, as is dbeta
  Tensor dbeta;
  double eps = 1e-5;

  bool backward() const { return dy.defined(); }
  DType dtype() const { return x.dtype(); }
  Device device() const { return x.device(); }
  std::string describe() const;

  // For autotuning (kernels/op.h).
  std::string tuning_key() const;
  std::vector<Tensor> written() const;
};

/// Whether cuDNN can compute it: contiguous rows with gamma and beta of one dtype, f32, f16 or
/// bf16, on a device; no residual and no other gradient; forward with mean and rstd, backward with
/// every gradient. The library was found, and has a plan.
bool layer_norm_fits_cudnn(const LayerNormProblem& problem);

WEFT_DECLARE_OP(layer_norm, LayerNormProblem);

}  // namespace weft::kernels
