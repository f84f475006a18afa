// What strategies cost whose ranks each have a whole copy of what they work on: of the model, of
// their parts of its layers, of a stage.
#pragma once

#include "dist/strategy/strategy_kind.h"

namespace weft::dist {

class WholeCopy : public StrategyKind {
 public:
  /// 4 P parameters, 4 P gradients of each thread, 8 P of the optimizer.
  StateBytes state_bytes(const ModelLayout& layout, const Sharing& sharing) const override;
  int64_t peak_bytes(const ModelLayout& layout, const Sharing& sharing,
                     int64_t activations) const override;
  int64_t sent_bytes(const ModelLayout&, const Sharing&, const StepShape&) const override {
    return 0;
  }
  /// With copies, ddp's buckets leave when their gradients are complete, one after another.
  Timeline timeline(const std::vector<RankWork>& ranks, const Sharing& sharing,
                    const GroupSeconds& seconds, const StepShape& step) const override;
  std::optional<StrategyOptions> planned(const PlanChoice&) const override { return std::nullopt; }
};

}  // namespace weft::dist
