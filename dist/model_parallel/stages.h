// Which of a model's segments make which stage of a pipeline, and what an activation costs on its
// way between two of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/shape.h"
#include "core/tensor.h"
#include "nn/structure.h"

namespace weft::dist {

/// Elements of the tensors of `state` that each segment owns, and one more, so that segments
/// without parameters count.
std::vector<double> segment_costs(const nn::Segments& segments, const NamedTensors& state);

/// The ends of the stages in a chain of these costs: the largest sum is as small as it can be, and
/// no stage is empty.
std::vector<size_t> cut_evenly(const std::vector<double>& costs, size_t stages);

/// Words of 8 bytes that announce an activation: its dtype, its shape, and where random numbers go
/// on.
inline constexpr int64_t kActivationHeader = 5 + kMaxDims;

}  // namespace weft::dist
