// Stochastic gradient descent, with momentum and Nesterov's variant. Equations: kernels/sgd/sgd.h.
#pragma once

#include "optim/optimizer.h"

namespace weft::optim {

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;  // needs momentum, and no dampening
};

class SGD : public Optimizer {
 public:
  explicit SGD(const ParameterGroups& groups, const SgdOptions& options = {});

 protected:
  void check(const ParameterGroup& group) const override;
  std::vector<std::string> state_names(const ParameterGroup& group) const override;
  void update(const ParameterGroup& group, const Batch& batch, double gradient_scale) override;
  bool is_fused() const override { return true; }
};

}  // namespace weft::optim
