#include "nn/segment.h"

#include <algorithm>

#include "nn/layers.h"

namespace weft::nn {

bool is_below(const std::string& name, const std::string& owner) {
  return name == owner || name.starts_with(owner + ".");
}

bool owns(const Segment& segment, const std::string& name) {
  return std::ranges::any_of(segment.owns,
                             [&](const std::string& owner) { return is_below(name, owner); });
}

Segments segments_of(Sequential& chain) {
  Segments segments;
  for (const auto& [name, module] : chain.named_modules()) {
    if (name.empty() || name.find('.') != std::string::npos) continue;
    Module* const child = module;
    segments.push_back({name, [child](const Tensor& x) { return (*child)(x); }, {name}});
  }
  return segments;
}

}  // namespace weft::nn
