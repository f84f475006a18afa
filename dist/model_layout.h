// A model as far as its sizes go, and how ranks share it: what the formulas of cost.h and
// step_time.h are about.
//
//   const Sharing sharing = sharing_of({.name = "fsdp+tp"}, 8);       // 4 parts of 2 cuts
//   const ModelLayout mine = layout_of(model, structure, sharing, 3);   // of rank 3
//
// Under tensor parallelism a rank's layout is that of a model with its parts of the cut layers, in
// a pipeline that of its stage.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <vector>

#include "dist/strategy.h"

namespace weft::dist {

/// How ranks share a model: N = shard * replicas * tensor * stages processes.
struct Sharing {
  int shard = 1, replicas = 1;  // ranks to a copy, and copies
  int tensor = 1;               // ranks that share a layer
  bool deals_out_tokens = false, cuts_head = false;
  int stages = 1;             // of a pipeline,
  int64_t micro_batches = 1;  // through which a batch goes in so many parts
  int threads = 1;            // of dp, in one process

  int ranks() const { return shard * replicas * tensor * stages; }
  /// Devices that take different images, and those that take one rank's together.
  int data_ranks() const { return shard * replicas * threads; }
  /// Where a rank stands.
  int tensor_index(int rank) const { return rank % tensor; }
  int stage_index(int rank) const { return rank % stages; }
  /// Among the ranks that share a copy, and among the copies.
  int shard_index(int rank) const { return rank / (tensor * stages) % shard; }
  int replica_index(int rank) const { return rank / (tensor * stages) / shard; }
};
/// Throws Error for what make_strategy() refuses.
Sharing sharing_of(const StrategyOptions& options, int ranks);
/// With the strategy's own settings. (A template, so that braces mean options.)
template <std::convertible_to<std::string> Name>
Sharing sharing_of(const Name& strategy, int ranks, int shard_size = 0) {
  return sharing_of(StrategyOptions{.name = strategy, .shard_size = shard_size}, ranks);
}

/// Elements.
struct ModelLayout {
  int64_t parameters = 0;
  int64_t largest_parameter = 0;
  /// Of the root, which is what no policy chose: how much comes before the first other unit in
  /// order of registration, and how much behind it.
  int64_t root_before = 0, root_behind = 0;
  std::vector<int64_t> units;  // the others, in the order of a forward pass
  std::vector<int64_t> sizes;  // of all parameters, in order of registration

  // Tensor parallelism: attentions and MLPs that are cut, what a parallel head takes, and the whole
  // parameters whose gradients are summed where tokens are dealt out.
  int64_t cut_layers = 0;
  int64_t width = 0;  // of the activations between them
  int64_t head_width = 0;
  std::vector<int64_t> summed;

  // An image's activations, for the caller to fill in: the tokens between cut layers, what a
  // pipeline's stage takes from the one before it, and what it hands on.
  int64_t tokens = 0, taken = 0, given = 0;
  double activation_bytes = 4;  // of an element of theirs

  int64_t root() const { return root_before + root_behind; }
};
/// Of a module whose parts are called in order of registration, as transformers' are. Throws Error
/// for a model that cannot be shared so.
ModelLayout layout_of(nn::Module& module, const ModelStructure& structure,
                      const Sharing& sharing = {}, int rank = 0);

}  // namespace weft::dist
