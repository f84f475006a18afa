#include "dist/plan/model_layout.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "dist/model_parallel/stages.h"
#include "dist/model_parallel/tensor_parallel.h"

namespace weft::dist {
namespace {

/// How a rank's parameters differ from the model's.
class Shares {
 public:
  Shares(nn::Module& module, const nn::ModelStructure& structure, const Sharing& sharing, int rank)
      : sharing_(sharing), rank_(rank) {
    if (sharing.tensor > 1) cut(module, structure);
    if (sharing.stages > 1) choose_stage(module, structure);
  }

  int64_t elements(const std::string& name, const Tensor& parameter) const {
    if (sharing_.stages > 1 && !own_.contains(name)) return 0;
    const auto found = cuts_.find(parameter.id());
    if (found == cuts_.end()) return parameter.numel();
    return found->second.elements(parameter.numel(), sharing_.tensor, sharing_.tensor_index(rank_));
  }
  bool is_cut(const Tensor& parameter) const { return cuts_.contains(parameter.id()); }

 private:
  void cut(nn::Module& module, const nn::ModelStructure& structure) {
    const auto add = [&](const Cuts& cuts) {
      for (const auto& [parameter, cut] : cuts) cuts_.emplace(parameter.id(), cut);
    };
    for (const auto& [name, child] : module.named_modules()) {
      if (auto* attention = dynamic_cast<nn::MultiheadAttention*>(child)) {
        WEFT_CHECK(attention->heads % sharing_.tensor == 0,
                   "tensor parallelism: {} ranks do not divide {} heads", sharing_.tensor,
                   attention->heads);
        add(cuts_of(*attention));
      }
    }
    for (const auto& [first, second] : structure.mlps) {
      WEFT_CHECK(first->weight.size(0) % sharing_.tensor == 0,
                 "tensor parallelism: {} ranks do not divide {} features", sharing_.tensor,
                 first->weight.size(0));
      add(cuts_of(*first, *second));
    }
    WEFT_CHECK(!cuts_.empty(), "tensor parallelism: the model has neither attention nor an MLP");
    if (!sharing_.cuts_head) return;
    WEFT_CHECK(structure.head && structure.head->weight.size(0) >= sharing_.tensor,
               "parallel head: the model has no head for {} ranks", sharing_.tensor);
    add(cuts_of_head(*structure.head));
  }
  void choose_stage(nn::Module& module, const nn::ModelStructure& structure) {
    const nn::Segments& segments = structure.segments;
    WEFT_CHECK(static_cast<int>(segments.size()) >= sharing_.stages,
               "pipeline: {} stages cannot be made of {} segments", sharing_.stages,
               segments.size());
    const NamedTensors state = module.state_dict();
    const std::vector<size_t> ends = stage_ends(segments, state, sharing_.stages);
    const int stage = sharing_.stage_index(rank_);
    for (size_t i = stage == 0 ? 0 : ends[stage - 1]; i < ends[stage]; ++i) {
      for (const auto& [name, tensor] : state) {
        if (nn::owns(segments[i], name)) own_.insert(name);
      }
    }
  }

  const Sharing sharing_;
  const int rank_;
  std::unordered_map<const void*, Cut> cuts_;
  std::unordered_set<std::string> own_;
};

/// What tensor parallelism sends.
void add_exchanges(ModelLayout& layout, nn::Module& module, const nn::ModelStructure& structure,
                   const Sharing& sharing, const Shares& shares) {
  for (const auto& [name, child] : module.named_modules()) {
    if (auto* attention = dynamic_cast<nn::MultiheadAttention*>(child)) {
      ++layout.cut_layers;
      layout.width = attention->out_proj.weight.size(0);
    }
  }
  for (const auto& [first, second] : structure.mlps) {
    ++layout.cut_layers;
    layout.width = second->weight.size(0);
  }
  if (sharing.cuts_head) layout.head_width = structure.head->weight.size(1);
  if (!sharing.deals_out_tokens) return;
  for (nn::Module* part : structure.tokens.between) {
    for (const auto& [name, parameter] : part->named_parameters()) {
      if (!shares.is_cut(parameter)) layout.summed.push_back(parameter.numel());
    }
  }
}

}  // namespace

ModelLayout layout_of(nn::Module& module, const nn::ModelStructure& structure,
                      const Sharing& sharing, int rank) {
  const Shares shares(module, structure, sharing, rank);
  ModelLayout layout;
  layout.tokens = structure.tokens.count;
  const NamedTensors parameters = module.named_parameters();
  std::unordered_map<const void*, int64_t> elements;
  for (const auto& [name, tensor] : parameters) {
    elements[tensor.id()] = shares.elements(name, tensor);
  }
  std::unordered_map<const void*, size_t> owners;  // unit + 1; 0: the root
  std::vector<int64_t> sizes;
  // As FullySharded does: inner modules first.
  auto modules = module.named_modules();
  for (auto entry = modules.rbegin(); entry != modules.rend(); ++entry) {
    const auto& [name, inner] = *entry;
    if (name.empty() || !structure.units || !structure.units(name, *inner)) continue;
    int64_t sum = 0;
    for (const auto& [parameter, tensor] : inner->named_parameters()) {
      if (owners.try_emplace(tensor.id(), sizes.size() + 1).second) sum += elements[tensor.id()];
    }
    if (sum > 0) sizes.push_back(sum);
  }
  layout.units.assign(sizes.rbegin(), sizes.rend());
  bool is_behind = false;
  for (const auto& [name, tensor] : parameters) {
    const int64_t n = elements[tensor.id()];
    if (n == 0) continue;
    layout.parameters += n;
    layout.largest_parameter = std::max(layout.largest_parameter, n);
    layout.sizes.push_back(n);
    if (owners.contains(tensor.id())) {
      is_behind = true;
    } else {
      (is_behind ? layout.root_behind : layout.root_before) += n;
    }
  }
  if (sharing.tensor > 1) add_exchanges(layout, module, structure, sharing, shares);
  return layout;
}

}  // namespace weft::dist
