#include "train/fine_tuning.h"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

namespace weft::train {
namespace {

constexpr std::string_view kLayer = "encoder.layers.encoder_layer_";

bool names(const std::string& pattern, const std::string& parameter) {
  return parameter == pattern || parameter.starts_with(pattern + ".") ||
         ::fnmatch(pattern.c_str(), parameter.c_str(), 0) == 0;
}

/// The number of the layer that a parameter belongs to; -1 for none.
int64_t layer_of(std::string_view parameter) {
  if (!parameter.starts_with(kLayer)) return -1;
  int64_t layer = -1;
  std::from_chars(parameter.data() + kLayer.size(), parameter.data() + parameter.size(), layer);
  return layer;
}

bool is_input(std::string_view parameter) {
  const auto begins = [&](std::string_view part) { return parameter.starts_with(part); };
  return begins("class_token") || begins("conv_proj.") || begins("stem.") ||
         begins("encoder.pos_embedding");
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
                                        const nn::Module& model) {
  int64_t layers = 0;
  for (const auto& [name, tensor] : model.named_parameters()) {
    layers = std::max(layers, layer_of(name) + 1);
  }
  WEFT_CHECK(layers > 0, "layer-decay: the model has no transformer's layers");
  std::vector<optim::ParameterGroup> result;
  for (const optim::ParameterGroup& group : groups) {
    std::map<int64_t, optim::ParameterGroup, std::greater<>> by_depth;  // the full rate first
    for (const auto& named : group.parameters) {
      const int64_t layer = layer_of(named.first);
      const int64_t depth = layer >= 0 ? layer + 1 : is_input(named.first) ? 0 : layers + 1;
      optim::ParameterGroup& part = by_depth[depth];
      part.options = group.options;
      part.lr_scale = group.lr_scale * std::pow(decay, static_cast<double>(layers + 1 - depth));
      part.parameters.push_back(named);
    }
    for (auto& [depth, part] : by_depth) result.push_back(std::move(part));
  }
  return result;
}

}  // namespace weft::train
