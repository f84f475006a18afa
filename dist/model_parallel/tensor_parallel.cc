#include "dist/model_parallel/tensor_parallel.h"

#include <fmt/format.h>

#include <algorithm>

#include "autograd/ops.h"
#include "autograd/random.h"
#include "autograd/replay.h"
#include "core/memory_account.h"
#include "dist/model_parallel/parallel_layers.h"
#include "dist/model_parallel/rank_collectives.h"
#include "nn/class_name.h"
#include "nn/meta.h"

namespace weft::dist {
namespace {

/// Parameters that are there, with the lengths of their dimensions.
Cuts defined_ones(Cuts cuts) {
  std::erase_if(cuts, [](const auto& entry) { return !entry.first.defined(); });
  for (auto& [parameter, cut] : cuts) cut.length = parameter.size(cut.dim);
  return cuts;
}

}  // namespace

Cuts cuts_of(const nn::MultiheadAttention& attention) {
  const Cut in{.dim = 0, .sections = {1, 1, 1}};
  return defined_ones({{attention.in_proj_weight, in},
                       {attention.in_proj_bias, in},
                       {attention.out_proj.weight, {.dim = 1}}});
}

Cuts cuts_of(const nn::ParallelLinears& layers) {
  Cut columns{.dim = 0};
  if (layers.heads > 0) columns.sections = {layers.heads, layers.kv_heads, layers.kv_heads};
  Cuts cuts = {{layers.rows->weight, {.dim = 1}}};
  for (const nn::Linear* column : layers.columns) {
    cuts.insert(cuts.end(), {{column->weight, columns}, {column->bias, columns}});
  }
  return defined_ones(std::move(cuts));
}

Cuts cuts_of_head(const nn::Linear& head) {
  return defined_ones({{head.weight, {.dim = 0}}, {head.bias, {.dim = 0}}});
}

CutLayers cut_layers_of(nn::Module& module, const nn::ModelStructure& structure) {
  CutLayers all{.linears = structure.linears};
  for (const auto& [name, child] : module.named_modules()) {
    auto* const attention = dynamic_cast<nn::MultiheadAttention*>(child);
    if (attention) all.attentions.push_back(attention);
  }
  for (const auto& [first, second] : structure.mlps) {
    all.linears.push_back({.columns = {first}, .rows = second});
  }
  return all;
}

void check_divides(const nn::MultiheadAttention& attention, int ranks, const std::string& name) {
  WEFT_CHECK(attention.heads % ranks == 0,
             "tensor parallelism: {} ranks do not divide {} heads of {}", ranks, attention.heads,
             name);
}

void check_divides(const nn::ParallelLinears& layers, int ranks, const std::string& name) {
  WEFT_CHECK(!layers.columns.empty() && layers.rows,
             "tensor parallelism: {} has no columns, or no rows", name);
  const int64_t made = layers.columns[0]->weight.size(0), taken = layers.rows->weight.size(1);
  for (const nn::Linear* column : layers.columns) {
    WEFT_CHECK(column->weight.size(0) == made,
               "tensor parallelism: {} makes {} and {} features of one tensor", name, made,
               column->weight.size(0));
  }
  if (layers.heads == 0) {
    WEFT_CHECK(made == taken,
               "tensor parallelism: a layer of {} features in front of one that takes {}", made,
               taken);
    WEFT_CHECK(made % ranks == 0,
               "tensor parallelism: {} ranks do not divide the {} features of {}", ranks, made,
               name);
    return;
  }
  const int64_t all = layers.heads + 2 * layers.kv_heads;
  WEFT_CHECK(layers.kv_heads > 0 && made % all == 0 && made / all * layers.heads == taken,
             "tensor parallelism: {} makes {} features, expected those of {} + 2 x {} heads, of "
             "which {} give the {} that the layer behind takes",
             name, made, layers.heads, layers.kv_heads, layers.heads, taken);
  const bool is_grouped = layers.kv_heads != layers.heads;
  WEFT_CHECK(layers.heads % ranks == 0 && layers.kv_heads % ranks == 0,
             "tensor parallelism: {} ranks do not divide {} heads{} of {}", ranks, layers.heads,
             is_grouped ? fmt::format(", which share {} of keys and values,", layers.kv_heads) : "",
             name);
}

namespace {

/// Throws Error for a layer of a derived class: what stands in for it knows nothing of that class's
/// forward().
template <class Layer>
void check_class(const Layer& layer, const std::string& name) {
  const std::string expected = nn::class_name(typeid(Layer)), got = nn::class_name(layer);
  WEFT_CHECK(
      got == expected,
      "tensor parallelism: {} belongs to a {}, whose own forward() would be lost where it is "
      "cut; expected a {} itself",
      name, got, expected);
}

/// Random numbers that differ between the ranks of a group, or, called again, that do not: all go
/// on from one place afterwards, since all draw equally many.
void switch_streams(const Communicator& group) {
  // The word "tp" keeps these streams apart from others.
  constexpr uint64_t kTensorParallel = 0x7470;
  generator().stream ^= (kTensorParallel + static_cast<uint64_t>(group.rank()) + 1) << 48;
}

/// Throws Error where x, made of what the columns have made, is made of another of the parameters,
/// too: each rank has features of its own there, and would have another gradient of it.
void check_between(const Tensor& x, const std::vector<nn::Linear*>& columns,
                   const NamedTensors& parameters, const std::string& rows) {
  std::vector<Edge> ahead = {edge_of(x)};
  std::unordered_set<const Node*> seen;
  while (!ahead.empty()) {
    const Edge edge = ahead.back();
    ahead.pop_back();
    if (edge.leaf) {
      const bool is_cut = std::ranges::any_of(columns, [&](const nn::Linear* column) {
        return column->weight.autograd() == edge.leaf.get() ||
               column->bias.autograd() == edge.leaf.get();
      });
      const auto found = std::ranges::find_if(parameters, [&](const auto& entry) {
        return entry.second.autograd() == edge.leaf.get();
      });
      WEFT_CHECK(is_cut || found == parameters.end(),
                 "tensor parallelism: \"{}\" is used between {} and the layers in front of it, "
                 "where each rank has features of its own, and would get another gradient on each; "
                 "expected no parameter there, or tokens that are dealt out, whose parameters' "
                 "gradients are summed",
                 found->first, rows);
    }
    if (!edge.node || !seen.insert(edge.node.get()).second) continue;
    // Here the columns begin, those in fp8 by the second.
    const std::string& op = edge.node->name;
    if (op == "column_parallel_linear" || op == "copy_to_ranks") continue;
    ahead.insert(ahead.end(), edge.node->inputs.begin(), edge.node->inputs.end());
  }
}

}  // namespace

/// What the cut layers have to know of the tokens around them.
struct TensorParallel::Sequence {
  std::unordered_set<const nn::Module*> holds;  // who works on dealt-out tokens
  std::string begin, end;                       // the classes of the region's ends

  /// Of the sequence that is dealt out, or, where activations are recomputed, theirs. 0: none is.
  int64_t length() const {
    const auto known = replayed_numbers().find(this);
    return known == replayed_numbers().end() ? 0 : known->second;
  }
  void set_length(int64_t length) const { replayed_numbers()[this] = length; }

  Tokens of(const nn::Module& module) const {
    return holds.contains(&module) ? Tokens::kDealtOut : Tokens::kWhole;
  }
  /// Throws Error unless x, of `what`, has a rank's tokens of the sequence.
  void check(const Tensor& x, int ranks, const std::string& what) const {
    const int64_t tokens = x.size(-2), expected = (length() + ranks - 1) / ranks;
    WEFT_CHECK(
        ranks == 1 || (length() > 0 && tokens == expected),
        "sequence parallelism: {} has {} tokens, expected {} of {} that were dealt out to {} "
        "ranks: that begins where {} is called, as module(x) and not by forward(x), and ends "
        "with {}",
        what, tokens, expected, length(), ranks, begin, end);
  }
};

/// What several layers make of one tensor, this rank's features: of all of them when the first is
/// called, for the others to find.
class TensorParallel::Columns {
 public:
  Columns(const std::vector<nn::Linear*>& layers, CommunicatorPtr group,
          std::shared_ptr<const Sequence> sequence, std::string name)
      : layers_(layers),
        group_(std::move(group)),
        sequence_(std::move(sequence)),
        name_(std::move(name)) {}

  Tensor take(size_t layer, const Tensor& x) {
    if (!made_of_.is_same(x) || !waiting_[layer].defined()) make(x);
    Tensor y = std::exchange(waiting_[layer], {});
    if (all_taken()) made_of_ = {};
    return y;
  }
  bool all_taken() const {
    return std::ranges::none_of(waiting_, [](const Tensor& y) { return y.defined(); });
  }

 private:
  void make(const Tensor& x) {
    const Tokens tokens = sequence_->of(*layers_[0]);
    if (tokens == Tokens::kDealtOut) sequence_->check(x, group_->size(), name_ + "'s input");
    Tensors weights, biases;
    for (const nn::Linear* layer : layers_) {
      weights.push_back(layer->weight);
      biases.push_back(layer->bias);
    }
    waiting_ = column_parallel_linears(x, weights, biases, group_, tokens, sequence_->length());
    made_of_ = x;
    // The cut region begins. Of dealt-out tokens random numbers differ already.
    if (tokens == Tokens::kWhole) switch_streams(*group_);
  }

  const std::vector<nn::Linear*> layers_;
  const CommunicatorPtr group_;
  const std::shared_ptr<const Sequence> sequence_;
  const std::string name_;  // the first layer's
  Tensor made_of_;
  Tensors waiting_;
};

TensorParallel::TensorParallel(nn::Module& module, CommunicatorPtr group)
    : group_(std::move(group)),
      sequence_(std::make_shared<Sequence>()),
      model_(nn::class_name(module)) {
  nn::materialize(module);
  for (const auto& [name, tensor] : module.state_dict()) group_->broadcast(tensor).wait();
  parameters_ = std::make_shared<NamedTensors>(module.named_parameters());
  for (const auto& [name, tensor] : *parameters_) names_[tensor.id()] = name;
  std::unordered_map<const void*, const nn::Module*> owners;  // by where a tensor's elements lie
  for (const auto& [path, part] : module.named_modules()) {
    for (const auto& [name, tensor] : part->unrouted_state()) {
      if (name.find('.') != std::string::npos || tensor.numel() == 0) continue;
      const auto [owner, is_new] = owners.try_emplace(tensor.raw(), part);
      if (owner->second != part) tied_[tensor.raw()] = path.empty() ? name : path + "." + name;
    }
  }
}

const Cut* TensorParallel::cut_of(const std::string& name) const {
  const auto found = cuts_.find(name);
  return found == cuts_.end() ? nullptr : &found->second;
}

void TensorParallel::cut_parameters(const Cuts& cuts) {
  for (auto [parameter, cut] : cuts) {
    const auto name = names_.find(parameter.id());
    WEFT_CHECK(name != names_.end(), "tensor parallelism: {} is no parameter of the model",
               parameter);
    const auto tied = tied_.find(parameter.raw());
    WEFT_CHECK(tied == tied_.end(),
               "tensor parallelism: \"{}\" is tied to \"{}\", which is used as a whole; expected "
               "layers with tensors of their own: a head that is tied to an embedding stays whole "
               "with it",
               name->second, tied->second);
    WEFT_CHECK(cuts_.try_emplace(name->second, cut).second,
               "tensor parallelism: \"{}\" was cut already", name->second);
    const MemoryScope scope(MemoryKind::kParameters);
    const NoGrad guard;
    parameter.set_data(ops::clone(part_of(parameter, cut, *group_)));  // the whole is given back
  }
}

std::string TensorParallel::name_of(const Tensor& parameter) const {
  const auto found = names_.find(parameter.id());
  return found == names_.end() ? "a layer that is not the model's"
                               : fmt::format("{}'s \"{}\"", model_, found->second);
}

void TensorParallel::cut(nn::MultiheadAttention& attention) {
  check_divides(attention, group_->size(), name_of(attention.in_proj_weight));
  check_class(attention, name_of(attention.in_proj_weight));
  check_class(attention.out_proj, name_of(attention.out_proj.weight));
  cut_parameters(cuts_of(attention));
  if (attention.out_proj.bias.defined()) summed_.insert(attention.out_proj.bias.id());
  attention.set_stand_in([&attention, group = group_, sequence = sequence_,
                          name = name_of(attention.in_proj_weight)](const Tensor& x) {
    const Tokens tokens = sequence->of(attention);
    if (tokens == Tokens::kDealtOut) sequence->check(x, group->size(), name + "'s input");
    const Tensor qkv = column_parallel_linear(x, attention.in_proj_weight, attention.in_proj_bias,
                                              group, tokens, sequence->length());
    // The cut region. Of dealt-out tokens random numbers differ already.
    if (tokens == Tokens::kWhole) switch_streams(*group);
    const Tensor mixed =
        ops::self_attention(qkv, attention.heads / group->size(), attention.current_options());
    if (tokens == Tokens::kWhole) switch_streams(*group);
    return row_parallel_linear(mixed, attention.out_proj.weight, attention.out_proj.bias, group,
                               tokens);
  });
}

void TensorParallel::cut(const nn::ParallelLinears& layers) {
  check_divides(layers, group_->size(),
                layers.columns.empty() ? "a group of layers" : name_of(layers.columns[0]->weight));
  for (const nn::Linear* column : layers.columns) check_class(*column, name_of(column->weight));
  check_class(*layers.rows, name_of(layers.rows->weight));
  cut_parameters(cuts_of(layers));
  if (layers.rows->bias.defined()) summed_.insert(layers.rows->bias.id());
  const auto columns = std::make_shared<Columns>(layers.columns, group_, sequence_,
                                                 name_of(layers.columns[0]->weight));
  for (size_t i = 0; i < layers.columns.size(); ++i) {
    layers.columns[i]->set_stand_in([columns, i](const Tensor& x) { return columns->take(i, x); });
  }
  layers.rows->set_stand_in([layers, columns, group = group_, sequence = sequence_,
                             parameters = parameters_,
                             name = name_of(layers.rows->weight)](const Tensor& x) {
    WEFT_CHECK(columns->all_taken(),
               "tensor parallelism: the layers in front of {} were not called on one tensor", name);
    const nn::Linear* const rows = layers.rows;
    const Tokens tokens = sequence->of(*rows);
    if (tokens == Tokens::kWhole) {
      if (group->size() > 1) check_between(x, layers.columns, *parameters, name);
      switch_streams(*group);  // the cut region ends
    }
    return row_parallel_linear(x, rows->weight, rows->bias, group, tokens);
  });
}

void TensorParallel::cut_head(nn::Linear& head) {
  const int64_t classes = head.weight.size(0);
  WEFT_CHECK(classes >= group_->size(), "parallel head: {} ranks for {} classes", group_->size(),
             classes);
  check_class(head, name_of(head.weight));
  cut_parameters(cuts_of_head(head));
  head.set_stand_in([&head, group = group_, classes](const Tensor& x) {
    const Tensor mine = column_parallel_linear(x, head.weight, head.bias, group, Tokens::kWhole);
    return head.is_training() ? mine : gather_from_ranks(mine, -1, group, classes);
  });
}

void TensorParallel::deal_out(const TokenRegion& region) {
  WEFT_CHECK(region.begin && region.end,
             "sequence parallelism: the model's structure does not say where tokens are dealt out "
             "and where they are put together");
  std::vector<nn::Module*> parts = region.between;
  parts.push_back(region.begin);
  // One that the tokens are dealt out in has more than what works on them.
  const bool holds_begin = std::ranges::any_of(
      region.end->named_modules(), [&](const auto& entry) { return entry.second == region.begin; });
  if (!holds_begin) parts.push_back(region.end);
  for (nn::Module* part : parts) {
    for (const auto& [name, module] : part->named_modules()) {
      sequence_->holds.insert(module);
      if (auto* drop_path = dynamic_cast<nn::DropPath*>(module)) {
        drop_path->set_stand_in([drop_path, group = group_](const Tensor& x) {
          switch_streams(*group);
          const Tensor y = drop_path->forward(x);
          switch_streams(*group);
          return y;
        });
      }
    }
    for (const auto& [name, parameter] : part->named_parameters()) {
      const auto known = names_.find(parameter.id());
      WEFT_CHECK(known != names_.end(), "sequence parallelism: \"{}\" is no parameter of the model",
                 name);
      // Those behind row-parallel layers are summed there, and those that parts share once.
      if (cut_of(known->second) || !summed_.insert(parameter.id()).second) continue;
      hooked_.insert(parameter.id());
      // Of a frozen one, too, which may be trained later: register_hook() takes none.
      parameter.make_autograd().hooks.push_back(
          [group = group_](const Tensor& gradient) { return summed(gradient, *group); });
    }
  }
  sequence_->begin = nn::class_name(*region.begin);
  sequence_->end = nn::class_name(*region.end);
  region.begin->set_stand_in(
      [begin = region.begin, group = group_, sequence = sequence_](const Tensor& x) {
        sequence->set_length(x.size(-2));
        switch_streams(*group);
        return begin->forward(scatter_sequence(x, -2, group));
      });
  region.end->set_stand_in(
      [end = region.end, group = group_, sequence = sequence_](const Tensor& x) {
        const Tensor y = end->forward(x);
        sequence->check(y, group->size(), sequence->end + "'s result");
        switch_streams(*group);
        const Tensor joined = join_sequence(y, -2, group, sequence->length());
        sequence->set_length(0);
        return joined;
      });
}

void TensorParallel::check_outside(const Tensors& results) const {
  if (group_->size() == 1) return;
  WEFT_CHECK(sequence_->length() == 0,
             "sequence parallelism: {} tokens are dealt out yet where the model ends; expected {}, "
             "which puts them together, to be called, as module(x) and not by forward(x)",
             sequence_->length(), sequence_->end);
  check_uses(results, false);
}

void TensorParallel::check_recomputed(const Tensor& result) const {
  check_uses({result}, sequence_->length() > 0);
}

void TensorParallel::check_uses(const Tensors& results, bool are_inside) const {
  if (hooked_.empty() || group_->size() == 1) return;
  std::vector<std::pair<Edge, bool>> ahead;  // and whether tokens are dealt out there
  for (const Tensor& result : results) {
    if (result.defined() && result.requires_grad()) ahead.emplace_back(edge_of(result), are_inside);
  }
  std::unordered_map<const AutogradMeta*, const std::pair<std::string, Tensor>*> by_leaf;
  for (const auto& entry : *parameters_) {
    if (entry.second.autograd()) by_leaf.emplace(entry.second.autograd(), &entry);
  }
  std::unordered_set<const Node*> seen;
  while (!ahead.empty()) {
    auto [edge, is_inside] = ahead.back();
    ahead.pop_back();
    if (const auto used = by_leaf.find(edge.leaf.get()); used != by_leaf.end()) {
      const auto& [name, parameter] = *used->second;
      const void* const id = parameter.id();
      WEFT_CHECK(is_inside || !hooked_.contains(id),
                 "sequence parallelism: \"{}\" is used outside of the dealt-out tokens, too, where "
                 "every rank has the same gradient of it; expected all of it on dealt-out tokens, "
                 "since it is summed over the ranks",
                 name);
      WEFT_CHECK(!is_inside || summed_.contains(id) || cut_of(name),
                 "sequence parallelism: \"{}\" is used on dealt-out tokens, where each rank has "
                 "another gradient of it; expected it in one of the modules that the model's "
                 "structure names there, whose parameters' gradients are summed",
                 name);
    }
    if (!edge.node || !seen.insert(edge.node.get()).second) continue;
    const std::string& op = edge.node->name;
    if (op == "join_sequence" || op == "scatter_sequence") is_inside = op == "join_sequence";
    for (const Edge& input : edge.node->inputs) ahead.emplace_back(input, is_inside);
  }
}

}  // namespace weft::dist
