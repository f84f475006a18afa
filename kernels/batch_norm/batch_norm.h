// Batch normalisation over all dimensions but the second, and its gradient (Ioffe, Szegedy 2015).
//
//   forward:   y = (x - mean[c]) rstd[c] weight[c] + bias[c],   rstd = 1 / sqrt(variance + eps)
//              training: mean and variance (biased) of the batch are computed, and are outputs;
//              otherwise they are inputs, the running ones.
//   backward:  xhat = (x - mean) rstd;  dbias[c] = sum of dy;  dweight[c] = sum of dy xhat
//              training: dx = weight rstd (dy - dbias / M - xhat dweight / M)
//              otherwise: dx = weight rstd dy
//
// x, y, dy, dx: [N, C, ...], one dtype (f64 f32 f16 bf16), M = N times the trailing sizes. weight,
// bias, mean, variance, dweight, dbias: [C], contiguous, f32 (f64 when x is f64). Inputs may have
// any strides; outputs are contiguous and assigned (=). Statistics take two passes over x in f64,
// in an order that depends on the shape alone.
#pragma once

#include "kernels/op.h"

namespace weft::kernels {

struct BatchNormProblem {
  Tensor x;         // the input, in both directions
  Tensor weight;    // undefined: 1
  Tensor bias;      // forward; undefined: 0
  Tensor mean;      // forward in training: an output; else an input
  Tensor variance;  // the same
  Tensor y;         // forward: the output
  Tensor dy;        // backward: the input
  Tensor dx;        // backward: outputs; each may be undefined
  Tensor dweight;
  Tensor dbias;
  double eps = 1e-5;
  bool training = true;

  bool backward() const { return dy.defined(); }
  DType dtype() const { return x.dtype(); }
  Device device() const { return x.device(); }
  std::string describe() const;
};

WEFT_DECLARE_OP(batch_norm, BatchNormProblem);

/// running = (1 - momentum) running + momentum batch, in place, for both statistics; the variance
/// that enters is the unbiased one, variance M / (M - 1), of M > 1 elements a channel. All four
/// tensors are contiguous and of one dtype, f32 or f64.
void update_running_statistics(const Tensor& mean, const Tensor& variance, int64_t elements,
                               double momentum, const Tensor& running_mean,
                               const Tensor& running_variance);

}  // namespace weft::kernels
