// SignSGD: w -= lr * sign(dw). Bernstein et al., arXiv:1802.04434.
#include "autograd/ops.h"
#include "optim/registry.h"

namespace weft::optim {
namespace {

class Signum : public Optimizer {
 public:
  explicit Signum(const ParameterGroups& groups) : Optimizer("Signum", {{"lr", 1e-3}}) {
    add_groups(groups);
  }

 private:
  void check(const ParameterGroup& group) const override { check_range(group, "lr", 0); }
  std::vector<std::string> state_names(const ParameterGroup&) const override { return {}; }
  void update(const ParameterGroup& group, const Batch& batch, double) override {
    const NoGrad guard;
    for (size_t i = 0; i < batch.parameters.size(); ++i) {
      Tensor w = batch.parameters[i];
      ops::add_(w, ops::sign(batch.gradients[i]) * -group["lr"]);
    }
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_signum(const ParameterGroups& groups) {
  return std::make_unique<Signum>(groups);
}

}  // namespace weft::optim
