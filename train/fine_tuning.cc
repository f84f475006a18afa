#include "train/fine_tuning.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace weft::train {
namespace {

bool names(const std::string& pattern, const std::string& parameter) {
  return nn::is_below(parameter, pattern) || ::fnmatch(pattern.c_str(), parameter.c_str(), 0) == 0;
}

/// The number of the segment that has a parameter.
int64_t depth_of(const std::string& parameter, const nn::Segments& segments) {
  const auto found = std::ranges::find_if(
      segments, [&](const nn::Segment& segment) { return nn::owns(segment, parameter); });
  WEFT_CHECK(found != segments.end(), "layer-decay: \"{}\" belongs to no segment of the model",
             parameter);
  return found - segments.begin();
}

}  // namespace

void freeze(nn::Module& model, const std::vector<std::string>& patterns) {
  const NamedTensors parameters = model.named_parameters();
  std::vector<Tensor> frozen;
  for (const std::string& pattern : patterns) {
    const size_t before = frozen.size();
    for (const auto& [name, tensor] : parameters) {
      if (names(pattern, name)) frozen.push_back(tensor);
    }
    WEFT_CHECK(frozen.size() > before, "freeze: \"{}\" names no parameter of the model", pattern);
  }
  const bool leaves_some = std::ranges::any_of(parameters, [&](const auto& named) {
    return std::ranges::none_of(frozen, [&](const Tensor& t) { return t.is_same(named.second); });
  });
  WEFT_CHECK(leaves_some, "freeze: nothing is left to train");
  for (Tensor& tensor : frozen) tensor.set_requires_grad(false);
}

NamedTensors trained_parameters(const nn::Module& model) {
  NamedTensors all = model.named_parameters();
  std::erase_if(all, [](const auto& named) { return !named.second.requires_grad(); });
  return all;
}

optim::ParameterGroups with_layer_decay(const optim::ParameterGroups& groups, double decay,
                                        const nn::ModelStructure& structure) {
  WEFT_CHECK(structure.layers > 0, "layer-decay: the model has no transformer's layers");
  std::vector<optim::ParameterGroup> result;
  for (const optim::ParameterGroup& group : groups) {
    std::map<int64_t, optim::ParameterGroup, std::greater<>> by_depth;  // the full rate first
    for (const auto& named : group.parameters) {
      const int64_t depth = depth_of(named.first, structure.segments);
      optim::ParameterGroup& part = by_depth[depth];
      part.options = group.options;
      part.lr_scale =
          group.lr_scale * std::pow(decay, static_cast<double>(structure.layers + 1 - depth));
      part.parameters.push_back(named);
    }
    for (auto& [depth, part] : by_depth) result.push_back(std::move(part));
  }
  return result;
}

}  // namespace weft::train
