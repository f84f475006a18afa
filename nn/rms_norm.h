// Root-mean-square normalisation: Zhang, Sennrich, "Root Mean Square Layer Normalization",
// arXiv:1910.07467.
#pragma once

#include "nn/module.h"

namespace weft::nn {

/// x / sqrt(mean(x^2) + eps) * weight over the last dimension, of size `width`.
class RmsNorm : public Module {
 public:
  explicit RmsNorm(int64_t width, double eps = 1e-5);
  Tensor forward(const Tensor& x) override;
  Tensor weight;
  double eps;
};

}  // namespace weft::nn
