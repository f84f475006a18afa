// A model as a chain: parts that each hand one tensor to the next.
//
//   Tensor y = x;
//   for (const Segment& segment : segments) y = segment.forward(y);   // the model's forward
//
// Pipelines deal the parts out over devices (dist/model_parallel/pipeline.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace weft::nn {

class Sequential;

struct Segment {
  std::string name;
  /// Belongs to the model, which must outlive it.
  std::function<Tensor(const Tensor&)> forward;
  /// Whose parameters and buffers are its own: tensors and modules of the model by name.
  std::vector<std::string> owns;
};

using Segments = std::vector<Segment>;

/// Whether a tensor's name is `owner` or lies below it: "head.weight" below "head".
bool is_below(const std::string& name, const std::string& owner);
/// Whether a tensor of that name is the segment's.
bool owns(const Segment& segment, const std::string& name);

/// A segment for each child.
Segments segments_of(Sequential& chain);

}  // namespace weft::nn
