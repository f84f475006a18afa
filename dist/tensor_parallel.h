// Tensor parallelism: the matrices of a layer cut over ranks that work on the same samples.
//
//   x -> ColumnParallelLinear -> gelu -> RowParallelLinear -> y
//
// A column-parallel linear keeps rows of W [out, in], hence a part of the output's features; a
// row-parallel one keeps columns, hence takes a part of the input's features and adds up partial
// results. One after the other they need one all_reduce in forward and one in backward. Attention
// is cut by heads in the same way. Shoeybi et al.: "Megatron-LM", arXiv:1909.08053.
//
// With sequence parallelism the activations between these layers are cut along the tokens instead
// of being whole on every rank: the all_reduce becomes a reduce_scatter behind the row-parallel
// layer and an all_gather in front of the column-parallel one, which keeps its own tokens alone for
// backward and gathers the others again. Of T tokens each rank has ceil(T / N); where N does not
// divide T the last ranks fill up with zeros, which nobody attends to and which get no gradient.
// Parameters that act on dealt-out tokens are whole on every rank, and their gradients are summed
// over the ranks. Korthikanti et al., arXiv:2205.05198.
//
// A parallel head is column-parallel over the classes, and the loss is computed without putting the
// logits together.
//
// Sums over ranks follow reduce_tree.h; a product cut along its inner dimension is rounded
// differently from a whole one, within its bound. Ranks that differ in dropout must do so only
// inside the cut regions. All functions are differentiable once.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "dist/communicator.h"
#include "nn/layers.h"

namespace weft::dist {

// Differentiable collectives.

/// x itself; its gradient is summed over the ranks. In front of what every rank does its part of.
Tensor copy_to_ranks(const Tensor& x, const CommunicatorPtr& group);
/// The sum over ranks; the gradient of each term is the gradient of the sum.
Tensor reduce_from_ranks(const Tensor& x, const CommunicatorPtr& group);
/// The ranks' x one after another along a dimension; the gradient is this rank's part. With a
/// `length` the parts are those of even_part(), otherwise all of one size.
Tensor gather_from_ranks(const Tensor& x, int64_t dim, const CommunicatorPtr& group,
                         int64_t length = 0);
/// This rank's part of x along a dimension, which the ranks divide; the gradient is put together.
Tensor scatter_to_ranks(const Tensor& x, int64_t dim, const CommunicatorPtr& group);

// Of sequences, dealt out in parts of ceil(T / N) that are filled up with zeros.

/// This rank's part of x along a dimension; the gradient is put together.
Tensor scatter_sequence(const Tensor& x, int64_t dim, const CommunicatorPtr& group);
/// The first `length` of the ranks' parts put together, 0 meaning all of them; the gradient is this
/// rank's part.
Tensor join_sequence(const Tensor& x, int64_t dim, const CommunicatorPtr& group,
                     int64_t length = 0);
/// The same, but every rank then does something else with the whole: the gradients are summed, each
/// rank getting its part.
Tensor gather_sequence(const Tensor& x, int64_t dim, const CommunicatorPtr& group,
                       int64_t length = 0);
/// This rank's part of the sum over ranks; the gradient is put together.
Tensor reduce_scatter_sequence(const Tensor& x, int64_t dim, const CommunicatorPtr& group);

/// How a layer takes and gives tokens [.., T, W]: whole on every rank, or dealt out along T,
/// outside the cut region.
enum class Tokens : uint8_t { kWhole, kDealtOut };

/// Rows [r out/N, (r+1) out/N) of a linear layer. The gradient of x is summed over the ranks while
/// the gradient of the weight is computed.
class ColumnParallelLinear : public nn::Module {
 public:
  /// Takes its part of a whole layer. Throws Error unless the ranks divide its output.
  ColumnParallelLinear(const nn::Linear& whole, CommunicatorPtr group, bool gather_output = false,
                       Tokens tokens = Tokens::kWhole);
  Tensor forward(const Tensor& x) override;
  Tensor weight, bias;

 private:
  CommunicatorPtr group_;
  bool gather_output_;
  Tokens tokens_;
};

/// Columns [r in/N, (r+1) in/N); the bias is added once, behind the sum.
class RowParallelLinear : public nn::Module {
 public:
  RowParallelLinear(const nn::Linear& whole, CommunicatorPtr group, bool input_is_parallel = true,
                    Tokens tokens = Tokens::kWhole);
  Tensor forward(const Tensor& x) override;
  Tensor weight, bias;

 private:
  CommunicatorPtr group_;
  bool input_is_parallel_;
  Tokens tokens_;
};

/// The heads of a self-attention dealt out: in_proj by columns, out_proj by rows.
class ParallelAttention : public nn::Module {
 public:
  /// Throws Error unless the ranks divide the heads.
  ParallelAttention(const nn::MultiheadAttention& whole, CommunicatorPtr group,
                    Tokens tokens = Tokens::kWhole);
  Tensor forward(const Tensor& x) override;
  Tensor in_proj_weight, in_proj_bias;
  RowParallelLinear& out_proj;

 private:
  CommunicatorPtr group_;
  int64_t heads_;
  Tokens tokens_;
};

/// Layer norm of tokens that are dealt out: its parameters are whole on every rank, and their
/// gradients, of the rank's tokens alone, are summed over the ranks.
class SequenceParallelLayerNorm : public nn::Module {
 public:
  SequenceParallelLayerNorm(const nn::LayerNorm& whole, CommunicatorPtr group);
  Tensor forward(const Tensor& x) override;
  Tensor weight, bias;

 private:
  CommunicatorPtr group_;
  double eps_;
};

/// Elements of n that rank r of N gets where parts differ by one at most: the first ones are the
/// larger.
int64_t even_part(int64_t n, int ranks, int rank);

/// Which part of a parameter rank r of N keeps: of each of `sections` equal sections along `dim`
/// the r-th of N parts, which differ by one at most. in_proj_weight [3 W, W] has three sections:
/// rows of q, k and v.
struct Cut {
  int64_t dim = 0;
  int64_t sections = 1;
  int64_t length = 0;  // of the whole parameter along dim

  /// Elements of a parameter of so many that a rank keeps.
  int64_t elements(int64_t whole, int ranks, int rank) const;
};
Tensor part_of(const Tensor& whole, const Cut& cut, const Communicator& group);
/// All parts together, on every rank.
Tensor whole_of(const Tensor& part, const Cut& cut, Communicator& group);

/// The parameters of a layer that are cut, and how: of attention by heads, of two linear layers, of
/// which the second takes what is made of the first's features, by these, of a head by classes.
using Cuts = std::vector<std::pair<Tensor, Cut>>;
Cuts cuts_of(const nn::MultiheadAttention& attention);
Cuts cuts_of(const nn::Linear& first, const nn::Linear& second);
Cuts cuts_of_head(const nn::Linear& head);

/// The part of a model between two modules whose activations are dealt out along the tokens, the
/// last dimension but one.
struct TokenRegion {
  nn::Module* begin = nullptr;       // what it is called on is dealt out
  nn::Module* end = nullptr;         // what it returns is put together; it may contain the others
  std::vector<nn::Module*> between;  // what works on dealt-out tokens
};

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

  /// By heads. Throws Error unless the ranks divide them.
  void cut(nn::MultiheadAttention& attention);
  /// The first by columns, the second, which takes what is made of its features, by rows. Throws
  /// Error unless the ranks divide those features.
  void cut(nn::Linear& first, nn::Linear& second);
  /// By classes, in parts that differ by one at most. While it trains the head returns this rank's
  /// logits, for parallel_cross_entropy; otherwise all. Throws Error for more ranks than classes.
  void cut_head(nn::Linear& head);
  /// Sequence parallelism between the region's ends: to be called behind the cuts.
  void deal_out(const TokenRegion& region);

  /// How a parameter was cut, by its name in the model; null: it is whole on every rank.
  const Cut* cut_of(const std::string& name) const;
  bool has_cuts() const { return !cuts_.empty(); }
  Communicator& group() const { return *group_; }

 private:
  struct Sequence;
  void cut_parameters(const Cuts& cuts);

  const CommunicatorPtr group_;
  const std::shared_ptr<Sequence> sequence_;
  std::unordered_map<const void*, std::string> names_;
  std::unordered_map<std::string, Cut> cuts_;
  std::unordered_set<const void*> row_biases_;
};

/// ops::cross_entropy of logits [N, this rank's part of `classes`] against labels of all classes:
/// i64 [N], or probabilities [N, classes]. The logits are nowhere put together: their largest, the
/// sums of their exponentials and the chosen ones travel, three numbers a row.
Tensor parallel_cross_entropy(const Tensor& logits, const Tensor& labels, int64_t classes,
                              const CommunicatorPtr& group,
                              const ops::CrossEntropyOptions& options = {});
/// i64 [N]: the class of each row with the largest logit, the first of equals.
Tensor parallel_argmax(const Tensor& logits, int64_t classes, const CommunicatorPtr& group);

/// The norm of all gradients: parameters of which every rank has a part, and such that every rank
/// has whole, which count once.
double parallel_grad_norm(const Tensors& cut, const Tensors& whole, Communicator& group);

}  // namespace weft::dist
