// What the files of the strategies share.
#pragma once

#include <memory>
#include <string>

#include "dist/data_parallel/ddp.h"
#include "dist/data_parallel/fsdp.h"
#include "dist/strategy/strategy.h"
#include "dist/strategy/strategy_kind.h"

namespace weft::dist {

/// The rows of strategy.inc, without what stands there.
namespace kinds {
#define WEFT_STRATEGY(name, make, devices, settings) std::unique_ptr<StrategyKind> make();
#include "dist/strategy/strategy.inc"
#undef WEFT_STRATEGY
}  // namespace kinds

/// "bf16" and the like; f32 for that and for none. Throws Error naming the setting.
DType narrow_dtype(std::string_view setting, const std::string& name);
/// `sharing` with what `options` say of the bytes of sharded parameters and their gradients.
Sharing with_bytes(const StrategyOptions& options, Sharing sharing);
/// StrategyOptions::wrap as a policy; `own` where it says nothing. Throws Error for a malformed
/// one.
WrapPolicy wrap_policy(const std::string& wrap, const WrapPolicy& own);

/// Gradients are summed, whatever `options` say. `travels_in` is what options.hook sends.
std::unique_ptr<Strategy> make_ddp(CommunicatorPtr data,
                                   const DdpOptions& options = {.gradient_as_bucket_view = true},
                                   DType travels_in = DType::f32);
/// fsdp, zero1-3, hsdp. Gradients are summed. `wrap` as in StrategyOptions.
std::unique_ptr<Strategy> make_sharded(const std::string& name, const FsdpOptions& options,
                                       const std::string& wrap = "");

/// What strategies cost whose ranks each have a whole copy of what they work on: of the model, of
/// their parts of its layers, of a stage.
class WholeCopy : public StrategyKind {
 public:
  /// 4 P parameters, 4 P gradients of each thread, 8 P of the optimizer.
  StateBytes state_bytes(const ModelLayout& layout, const Sharing& sharing) const override;
  int64_t sent_bytes(const ModelLayout&, const Sharing&, const StepShape&) const override {
    return 0;
  }
  /// With copies, ddp's buckets leave when their gradients are complete, one after another.
  Timeline timeline(const std::vector<RankWork>& ranks, const Sharing& sharing,
                    const GroupSeconds& seconds, const StepShape& step) const override;
  std::optional<StrategyOptions> planned(const PlanChoice&) const override { return std::nullopt; }
};

/// Bytes of a parameter in f32 with its gradient and so many tensors of the optimizer's.
constexpr int64_t kept_bytes(int64_t state_tensors) { return kElementBytes * (2 + state_tensors); }

/// "12.3 MB"
std::string megabytes(int64_t bytes);

}  // namespace weft::dist
