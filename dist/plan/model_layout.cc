#include "dist/plan/model_layout.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "dist/model_parallel/stages.h"
#include "dist/model_parallel/tensor_parallel.h"
#include "nn/class_name.h"
#include "nn/product_weights.h"

namespace weft::dist {
namespace {

using CutsById = std::unordered_map<const void*, Cut>;

/// What tensor parallelism cuts of a model, and in `layout` what it sends.
CutsById cut_layers(nn::Module& module, const nn::ModelStructure& structure, const Sharing& sharing,
                    ModelLayout& layout) {
  CutsById by_id;
  const auto add = [&](const Cuts& cuts) {
    for (const auto& [parameter, cut] : cuts) by_id.emplace(parameter.id(), cut);
  };
  const CutLayers layers = cut_layers_of(module, structure);
  const std::string name = nn::class_name(module);
  for (const nn::MultiheadAttention* attention : layers.attentions) {
    check_divides(*attention, sharing.tensor, name);
    add(cuts_of(*attention));
    ++layout.cut_layers;
    layout.width = attention->out_proj.weight.size(0);
  }
  for (const nn::ParallelLinears& linears : layers.linears) {
    check_divides(linears, sharing.tensor, name);
    add(cuts_of(linears));
    ++layout.cut_layers;
    layout.width = linears.rows->weight.size(0);
  }
  WEFT_CHECK(!layers.empty(), "tensor parallelism: the model has neither attention nor an MLP");
  if (sharing.cuts_head) {
    WEFT_CHECK(structure.head && structure.head->weight.size(0) >= sharing.tensor,
               "parallel head: the model has no head for {} ranks", sharing.tensor);
    add(cuts_of_head(*structure.head));
    layout.head_width = structure.head->weight.size(1);
    if (const nn::BatchRow row = module.batch_row(); row.has_tokens)
      layout.head_rows = row.shape[0];
  }
  if (!sharing.deals_out_tokens) return by_id;
  for (nn::Module* part : structure.tokens.between) {
    for (const auto& [name, parameter] : part->named_parameters()) {
      if (!by_id.contains(parameter.id())) layout.summed.push_back(parameter.numel());
    }
  }
  return by_id;
}

/// Names of the tensors of a pipeline's stage.
std::unordered_set<std::string> tensors_of_stage(nn::Module& module, const nn::Segments& segments,
                                                 int stages, int stage) {
  WEFT_CHECK(static_cast<int>(segments.size()) >= stages,
             "pipeline: {} stages cannot be made of {} segments", stages, segments.size());
  const NamedTensors state = module.state_dict();
  const std::vector<size_t> ends = stage_ends(segments, state, stages);
  std::unordered_set<std::string> names;
  for (size_t i = stage == 0 ? 0 : ends[stage - 1]; i < ends[stage]; ++i) {
    for (const auto& [name, tensor] : state) {
      if (nn::owns(segments[i], name)) names.insert(name);
    }
  }
  return names;
}

}  // namespace

ModelLayout layout_of(nn::Module& module, const nn::ModelStructure& structure,
                      const Sharing& sharing, int rank) {
  ModelLayout layout;
  CutsById cuts;
  if (sharing.tensor > 1) cuts = cut_layers(module, structure, sharing, layout);
  std::unordered_set<std::string> of_stage;
  if (sharing.stages > 1) {
    of_stage =
        tensors_of_stage(module, structure.segments, sharing.stages, sharing.stage_index(rank));
  }
  layout.tokens = structure.tokens.count;
  const NamedTensors parameters = module.named_parameters();
  std::unordered_map<const void*, int64_t> elements;
  for (const auto& [name, tensor] : parameters) {
    const auto cut = cuts.find(tensor.id());
    int64_t& mine = elements[tensor.id()] = tensor.numel();
    if (cut != cuts.end()) {
      mine = cut->second.elements(mine, sharing.tensor, sharing.tensor_index(rank));
    }
    if (sharing.stages > 1 && !of_stage.contains(name)) mine = 0;
  }
  const std::unordered_set<const void*> of_products = nn::product_weights(module);
  std::unordered_set<const void*> owned;  // by units
  std::vector<int64_t> sizes, products;
  // As FullySharded does: inner modules first.
  auto modules = module.named_modules();
  for (auto entry = modules.rbegin(); entry != modules.rend(); ++entry) {
    const auto& [name, inner] = *entry;
    if (name.empty() || !structure.units || !structure.units(name, *inner)) continue;
    int64_t sum = 0, of_them = 0;
    for (const auto& [parameter, tensor] : inner->named_parameters()) {
      if (!owned.insert(tensor.id()).second) continue;
      sum += elements[tensor.id()];
      if (of_products.contains(tensor.id())) of_them += elements[tensor.id()];
    }
    if (sum == 0) continue;
    sizes.push_back(sum);
    products.push_back(of_them);
  }
  layout.units.assign(sizes.rbegin(), sizes.rend());
  layout.unit_products.assign(products.rbegin(), products.rend());
  bool is_behind = false;
  for (const auto& [name, tensor] : parameters) {
    const int64_t n = elements[tensor.id()];
    if (n == 0) continue;
    layout.parameters += n;
    layout.largest_parameter = std::max(layout.largest_parameter, n);
    layout.sizes.push_back(n);
    if (owned.contains(tensor.id())) {
      is_behind = true;
    } else {
      if (of_products.contains(tensor.id())) layout.root_products += n;
      (is_behind ? layout.root_behind : layout.root_before) += n;
    }
  }
  return layout;
}

}  // namespace weft::dist
