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

/// Gradients are summed, whatever `options` say.
std::unique_ptr<Strategy> make_ddp(CommunicatorPtr data,
                                   const DdpOptions& options = {.gradient_as_bucket_view = true});
/// fsdp, zero1-3, hsdp. Gradients are summed.
std::unique_ptr<Strategy> make_sharded(const std::string& name, const FsdpOptions& options);

/// "12.3 MB"
std::string megabytes(double bytes);
/// Of the gradients that this rank has.
ExactSum own_squares(const Tensors& parameters);

}  // namespace weft::dist
