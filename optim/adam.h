// Adam (weight decay added to the gradient) and AdamW (decoupled), in PyTorch's order of
// operations. Equations: kernels/adam/adam.h.
#pragma once

#include "kernels/adam/adam.h"
#include "optim/optimizer.h"

namespace weft::optim {

template <bool kDecoupled>
struct AdamSettings {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = kDecoupled ? 1e-2 : 0;

  Options options() const {
    return {{"lr", lr},
            {"beta1", beta1},
            {"beta2", beta2},
            {"eps", eps},
            {"weight_decay", weight_decay}};
  }
};
using AdamOptions = AdamSettings<false>;
using AdamWOptions = AdamSettings<true>;

class Adam : public Optimizer {
 public:
  explicit Adam(const ParameterGroups& groups, const AdamOptions& options = {})
      : Adam("Adam", false, groups, options.options()) {}

 protected:
  Adam(std::string kind, bool decoupled, const ParameterGroups& groups, const Options& options);
  void check(const ParameterGroup& group) const override;
  std::vector<std::string> state_names(const ParameterGroup& group) const override;
  void update(const ParameterGroup& group, const Batch& batch, double gradient_scale) override;
  Tensor constants(const ParameterGroup& group, const Batch& batch,
                   double gradient_scale) const override;
  bool is_fused() const override { return true; }

 private:
  kernels::AdamProblem problem(const ParameterGroup& group, const Batch& batch,
                               double gradient_scale) const;

  bool decoupled_;
};

class AdamW : public Adam {
 public:
  explicit AdamW(const ParameterGroups& groups, const AdamWOptions& options = {})
      : Adam("AdamW", true, groups, options.options()) {}
};

}  // namespace weft::optim
