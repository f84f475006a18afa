// Optimizers for large batches, whose learning rate each layer scales by its weights' norm: w is a
// parameter, g its gradient. Parameters of one dimension (biases, normalisations) keep the rate.
// Norms are of whole layers.
#pragma once

#include "optim/optimizer.h"

namespace weft::optim {

struct LarsOptions {
  double lr = 1;
  double momentum = 0.9;
  double weight_decay = 1e-4;
  double trust_coefficient = 1e-3;
};

/// v = momentum v + rate (g + weight_decay w);  w = w - lr v
/// rate = trust_coefficient |w| / (|g| + weight_decay |w|), 1 where a norm is 0.
/// You, Gitman, Ginsburg: "Large Batch Training of Convolutional Networks", arXiv:1708.03888.
class Lars : public Optimizer {
 public:
  explicit Lars(const ParameterGroups& groups, const LarsOptions& options = {});

  bool needs_whole_parameters() const override { return true; }

 protected:
  void check(const ParameterGroup& group) const override;
  std::vector<std::string> state_names(const ParameterGroup& group) const override;
  void update(const ParameterGroup& group, const Batch& batch, double gradient_scale) override;
  bool is_fused() const override { return true; }
};

struct LambOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 1e-2;
  double trust_coefficient = 1;
};

/// u = m / (sqrt(v) + eps) + weight_decay w, with Adam's corrected moments m and v
/// w = w - lr rate u,  rate = trust_coefficient |w| / |u|, 1 where a norm is 0.
/// You et al.: "Large Batch Optimization for Deep Learning", arXiv:1904.00962.
class Lamb : public Optimizer {
 public:
  explicit Lamb(const ParameterGroups& groups, const LambOptions& options = {});

  bool needs_whole_parameters() const override { return true; }

 protected:
  void check(const ParameterGroup& group) const override;
  std::vector<std::string> state_names(const ParameterGroup& group) const override;
  void update(const ParameterGroup& group, const Batch& batch, double gradient_scale) override;
  bool is_fused() const override { return true; }
};

}  // namespace weft::optim
