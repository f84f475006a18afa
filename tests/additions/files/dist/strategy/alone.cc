// One device under another name.
#include "dist/strategy/strategies.h"

namespace weft::dist {
namespace {

class Alone : public Strategy {
 public:
  void wrap(nn::Module&, const ModelStructure&) override {}
  std::string describe(int64_t parameters) const override {
    return "alone: " + megabytes(16.0 * static_cast<double>(parameters));
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
