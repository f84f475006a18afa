// One device under another name.
#include "dist/strategy/strategies.h"

namespace weft::dist {
namespace {

class Alone : public Strategy {
 public:
  void wrap(nn::Module&, const ModelStructure&) override {}
  Tensor call(nn::Module&, const std::function<Tensor()>& function) override { return function(); }
  std::string describe(int64_t parameters, int64_t state_tensors) const override {
    return "alone: " + megabytes(kept_bytes(state_tensors) * parameters);
  }
};

class AloneKind : public WholeCopy {
 public:
  Sharing share(const StrategyOptions&, int) const override { return {}; }
  std::unique_ptr<Strategy> make(const StrategyOptions&, const Sharing&,
                                 CommunicatorPtr) const override {
    return std::make_unique<Alone>();
  }
  std::string state_formula() const override { return "16 P"; }
  std::string sent_formula() const override { return "0"; }
};

}  // namespace

std::unique_ptr<StrategyKind> kinds::alone() { return std::make_unique<AloneKind>(); }

}  // namespace weft::dist
