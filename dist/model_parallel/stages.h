// Which of a model's segments make which stage of a pipeline, and what an activation costs on its
// way between two of them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/shape.h"
#include "core/tensor.h"
#include "nn/structure.h"

namespace weft::dist {

/// The ends of the stages in the chain of segments: the largest stage owns as few elements of
/// `state` as it can, a segment counting as one element more, and no stage is empty. Throws Error
/// naming a segment that reads tensors of another, which a stage does not have.
std::vector<size_t> stage_ends(const nn::Segments& segments, const NamedTensors& state,
                               size_t stages);

/// Words of 8 bytes that announce an activation: its dtype, its shape, and where random numbers go
/// on.
inline constexpr int64_t kActivationHeader = 5 + kMaxDims;

}  // namespace weft::dist
