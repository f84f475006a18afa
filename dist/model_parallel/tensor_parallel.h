// Tensor parallelism: the matrices of a model's layers cut over ranks that work on the same samples
// (parallel_layers.h). Shoeybi et al.: "Megatron-LM", arXiv:1909.08053.
//
// With sequence parallelism the activations between these layers are cut along the tokens: the
// all_reduce becomes a reduce_scatter behind the row-parallel layer and an all_gather in front of
// the column-parallel one. Of T tokens each rank has ceil(T / N); where N does not divide T the
// last ranks fill up with zeros, which nobody attends to and which get no gradient. Parameters that
// act on dealt-out tokens are whole on every rank, and their gradients are summed over the ranks.
// Korthikanti et al., arXiv:2205.05198.
//
// Sums over ranks follow reduce_tree.h; a product cut along its inner dimension is rounded
// differently from a whole one, within its bound.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "dist/comm/communicator.h"
#include "dist/model_parallel/rank_parts.h"
#include "nn/layers.h"
#include "nn/structure.h"

namespace weft::dist {

/// The parameters of a layer that are cut, and how: of attention by heads, of other linear layers
/// by the features that the first ones make, of a head by classes.
using Cuts = std::vector<std::pair<Tensor, Cut>>;
Cuts cuts_of(const nn::MultiheadAttention& attention);
Cuts cuts_of(const nn::ParallelLinears& layers);
Cuts cuts_of_head(const nn::Linear& head);

/// What of a model can be cut, but for its head.
struct CutLayers {
  std::vector<nn::MultiheadAttention*> attentions;
  std::vector<nn::ParallelLinears> linears;

  bool empty() const { return attentions.empty() && linears.empty(); }
};
CutLayers cut_layers_of(nn::Module& module, const nn::ModelStructure& structure);

/// Throws Error with the sizes unless so many ranks divide the heads, or the features. `name` says
/// whose.
void check_divides(const nn::MultiheadAttention& attention, int ranks, const std::string& name);
void check_divides(const nn::ParallelLinears& layers, int ranks, const std::string& name);

using nn::TokenRegion;

/// Cuts layers where they stand in a model: they keep their names, and whoever calls them need not
/// know. Outside of them every rank has the same tensors. Dropout inside the cut regions, and of
/// dealt-out tokens, differs from rank to rank, but not DropPath, which drops whole samples; the
/// generator is the same on all ranks behind them.
///
///   TensorParallel parallel(model, group);
///   parallel.cut(block.self_attention);
///   parallel.cut(mlp.fc1, mlp.fc2);
///   parallel.deal_out({.begin = &dropout, .end = &encoder, .between = {&layers, &norm}});
class TensorParallel {
 public:
  /// Copies rank 0's state to all ranks of the group.
  TensorParallel(nn::Module& module, CommunicatorPtr group);

  /// By heads. Throws Error unless the ranks divide them and, as all cuts do, for a layer of a
  /// derived class.
  void cut(nn::MultiheadAttention& attention);
  /// The columns, which are to be called on one tensor, by the features that they make, the rows by
  /// those that they take. Throws Error unless the ranks divide those features, or their heads, and
  /// when the rows are called on what another parameter was used for, unless tokens are dealt out.
  void cut(const nn::ParallelLinears& layers);
  void cut(nn::Linear& first, nn::Linear& second) { cut({.columns = {&first}, .rows = &second}); }
  /// By classes, in parts that differ by one at most. While it trains the head returns this rank's
  /// logits, for parallel_cross_entropy; otherwise all. Throws Error for more ranks than classes,
  /// and, as all cuts do, for tensors that another module has, too.
  void cut_head(nn::Linear& head);
  /// Sequence parallelism between the region's ends: to be called behind the cuts.
  void deal_out(const TokenRegion& region);
  /// Of what the model has returned: throws Error where tokens were not put together, and where a
  /// parameter of the region, which it names, was used outside of it, too, or another inside.
  void check_outside(const Tensors& results) const;
  /// The same of what a checkpoint in the model computes again, once more when it does so.
  void check_recomputed(const Tensor& result) const;

  /// How a parameter was cut, by its name in the model; null: it is whole on every rank.
  const Cut* cut_of(const std::string& name) const;

 private:
  struct Sequence;
  class Columns;
  void cut_parameters(const Cuts& cuts);
  void check_uses(const Tensors& results, bool are_inside) const;
  std::string name_of(const Tensor& parameter) const;

  const CommunicatorPtr group_;
  const std::shared_ptr<Sequence> sequence_;
  const std::string model_;                         // its class
  std::shared_ptr<const NamedTensors> parameters_;  // the model's
  std::unordered_map<const void*, std::string> names_;
  std::unordered_map<const void*, std::string> tied_;  // another module's name for its elements
  std::unordered_map<std::string, Cut> cuts_;
  // Whose gradients on dealt-out tokens are summed over the ranks, by their layers or by a hook.
  std::unordered_set<const void*> summed_;
  std::unordered_set<const void*> hooked_;  // of these, by a hook
};

}  // namespace weft::dist
