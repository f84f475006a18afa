// What a model says of itself, for those who share it out over devices, tune it layer by layer, or
// foretell its time and memory: they know no model by its class or its names.
//
//   nn::ModelStructure Net::structure() {
//     nn::ModelStructure structure(nn::wrap_modules<Block>());
//     structure.mlps = {{&fc1, &fc2}};
//     structure.head = &head;
//     return structure;
//   }
//
// What is left out the model does not have: whoever needs it refuses the model by name.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nn/module.h"

namespace weft::nn {

class Linear;

/// A part of a model that hands one tensor to the next. A model is a chain of them,
///
///   for (const Segment& segment : segments) x = segment.forward(x);
///
/// which pipelines deal out over devices (dist/model_parallel/pipeline.h).
struct Segment {
  std::string name;
  /// Belongs to the model, which must outlive it.
  std::function<Tensor(const Tensor&)> forward;
  /// Whose parameters and buffers are its own: tensors and modules of the model by name.
  std::vector<std::string> owns;
  /// Tensors of other segments that it reads, too: a head tied to an embedding reads its weight.
  std::vector<std::string> reads = {};
};
using Segments = std::vector<Segment>;

/// Whether a tensor's name is `owner` or lies below it: "head.weight" below "head".
inline bool is_below(const std::string& name, const std::string& owner) {
  return name == owner || name.starts_with(owner + ".");
}
/// Whether a tensor of that name is the segment's.
inline bool owns(const Segment& segment, const std::string& name) {
  return std::ranges::any_of(segment.owns,
                             [&](const std::string& owner) { return is_below(name, owner); });
}

/// True for modules that become units of their own. Units inside a unit are taken out of it.
using WrapPolicy = std::function<bool(const std::string& name, Module& module)>;

/// Every module that is one of these classes.
template <class... Classes>
WrapPolicy wrap_modules() {
  return [](const std::string&, Module& module) {
    return (... || (dynamic_cast<Classes*>(&module) != nullptr));
  };
}

/// The part of a model between two modules whose activations may be dealt out along the tokens, the
/// last dimension but one.
struct TokenRegion {
  Module* begin = nullptr;       // what it is called on is dealt out
  Module* end = nullptr;         // what it returns is put together; it may contain the others
  std::vector<Module*> between;  // what works on dealt-out tokens
  int64_t count = 0;             // tokens of a sample; 0: not known
};

/// Linear layers that tensor parallelism cuts together. Of the features that `columns` make of one
/// tensor each rank makes a part, and `rows` adds up over the ranks what it makes of that part.
/// What happens between them concerns each feature by itself, or in attention each head: the
/// features of columns[0] then are those of `heads` of q, of `kv_heads` of k and of as many of v,
/// and whoever has a part of them sees from its size how many heads it has.
struct ParallelLinears {
  std::vector<Linear*> columns;  // with as many features each
  Linear* rows = nullptr;
  int64_t heads = 0, kv_heads = 0;  // 0: no attention
};

/// Learned positions on a grid of patches: a parameter [1, prefix + rows columns, width].
struct PositionEmbedding {
  std::string name;    // empty: the model has none
  int64_t prefix = 0;  // tokens in front of the grid's, such as a class token
};

/// Pointers are to modules of the model, which must outlive it.
struct ModelStructure {
  ModelStructure(WrapPolicy units = {}) : units(std::move(units)) {}

  WrapPolicy units;  // what is unsharded together: fsdp, zero, hsdp
  /// Pairs of linear layers, the second on the first's features: tp cuts them, and every
  /// MultiheadAttention.
  std::vector<std::pair<Linear*, Linear*>> mlps;
  /// What else tp cuts: gated MLPs, and attention that is made of linear layers.
  std::vector<ParallelLinears> linears;
  TokenRegion tokens;      // where tp may deal them out
  Linear* head = nullptr;  // the last layer, on the classes: tp may cut it, fine-tuning replaces it
  /// The model as a chain; every parameter and buffer belongs to one segment: pipeline.
  Segments segments;
  /// Layers of one kind, a segment each, with one segment before and one behind them: the learning
  /// rate may fall from each to the one before it. 0: the model is not built so.
  int64_t layers = 0;
  /// Names of parameters that are tokens or positions: weight decay leaves them out.
  std::vector<std::string> embeddings;
  PositionEmbedding positions;
  /// Takes from images of the training set, [N, C, H, W] as the model gets them, what is not
  /// learned, before the first step; empty where all is.
  std::function<void(const Tensor& images)> adapt_to = {};
  std::function<std::shared_ptr<Module>()> replica;  // another of the same architecture: dp
};

}  // namespace weft::nn
