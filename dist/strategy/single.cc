#include <fmt/format.h>

#include "dist/strategy/strategies.h"
#include "nn/meta.h"
#include "optim/clip.h"

namespace weft::dist {
namespace {

class Single : public Strategy {
 public:
  void wrap(nn::Module& module, const ModelStructure&) override { nn::materialize(module); }
  Tensors call(nn::Module&, const std::function<Tensors()>& function) override {
    return function();
  }
  double grad_norm(const Tensors& parameters) override { return optim::grad_norm_here(parameters); }
  Tensor unread_norm(const Tensors& parameters) override {
    return optim::unread_norm_here(parameters);
  }
  std::string describe(int64_t parameters, int64_t state_tensors) const override {
    const int64_t bytes = kept_bytes(state_tensors);
    return fmt::format("single: {} P = {}", bytes, megabytes(bytes * parameters));
  }
};

class SingleKind : public WholeCopy {
 public:
  Sharing share(const StrategyOptions&, int) const override { return {}; }
  bool takes_fp8_level(int) const override { return true; }
  std::unique_ptr<Strategy> make(const StrategyOptions&, const Sharing&,
                                 CommunicatorPtr) const override {
    return std::make_unique<Single>();
  }
  std::string state_formula() const override {
    return "4 P parameters + 4 P gradients + 8 P optimizer = 16 P";
  }
  std::string sent_formula() const override { return "0"; }
};

}  // namespace

std::unique_ptr<StrategyKind> kinds::single() { return std::make_unique<SingleKind>(); }

}  // namespace weft::dist
