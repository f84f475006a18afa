// The strategies one by one, as make_strategy() puts them together.
#pragma once

#include <memory>
#include <string>

#include "dist/ddp.h"
#include "dist/strategy.h"

namespace weft::dist {

/// Replicas as threads of this process: needs ModelStructure::replica.
std::unique_ptr<Strategy> make_data_parallel(int devices);
/// Gradients are summed, whatever `options` say.
std::unique_ptr<Strategy> make_ddp(CommunicatorPtr data,
                                   const DdpOptions& options = {.gradient_as_bucket_view = true});
/// fsdp, zero1-3, hsdp. Gradients are summed.
std::unique_ptr<Strategy> make_sharded(const std::string& name, const FsdpOptions& options);
/// Layers cut over a group as the options say; `inner` has the ranks that hold the same parts.
std::unique_ptr<Strategy> make_tensor_parallel(const StrategyOptions& options,
                                               CommunicatorPtr tensor,
                                               std::unique_ptr<Strategy> inner);
/// Needs ModelStructure::segments.
std::unique_ptr<Strategy> make_pipeline(const PipelineOptions& options);

/// "12.3 MB"
std::string megabytes(double bytes);
/// Of the gradients that this rank has.
ExactSum own_squares(const Tensors& parameters);

}  // namespace weft::dist
