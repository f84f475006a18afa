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
// layer and an all_gather in front of the column-parallel one. Korthikanti et al.,
// arXiv:2205.05198.
//
// Sums over ranks follow reduce_tree.h; a product cut along its inner dimension is rounded
// differently from a whole one, within its bound. Ranks that differ in dropout must do so only
// inside the cut regions. All functions are differentiable once.
#pragma once

#include <string>
#include <unordered_map>

#include "dist/communicator.h"
#include "nn/layers.h"

namespace weft::dist {

// Differentiable collectives.

/// x itself; its gradient is summed over the ranks. In front of what every rank does its part of.
Tensor copy_to_ranks(const Tensor& x, const CommunicatorPtr& group);
/// The sum over ranks; the gradient of each term is the gradient of the sum.
Tensor reduce_from_ranks(const Tensor& x, const CommunicatorPtr& group);
/// The ranks' x one after another along a dimension; the gradient is this rank's part.
Tensor gather_from_ranks(const Tensor& x, int64_t dim, const CommunicatorPtr& group);
/// This rank's part of x along a dimension, which the ranks divide; the gradient is put together.
Tensor scatter_to_ranks(const Tensor& x, int64_t dim, const CommunicatorPtr& group);
/// As gather_from_ranks, but every rank then does something else with the whole: the gradients are
/// summed, each rank getting its part.
Tensor gather_sequence(const Tensor& x, int64_t dim, const CommunicatorPtr& group);
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

/// Which part of a parameter rank r of N keeps: of each of `sections` equal sections along `dim`
/// the r-th of N parts. in_proj_weight [3 W, W] has three sections: rows of q, k and v.
struct Cut {
  int64_t dim = 0;
  int64_t sections = 1;
};
Tensor part_of(const Tensor& whole, const Cut& cut, const Communicator& group);
/// All parts together, on every rank.
Tensor whole_of(const Tensor& part, const Cut& cut, Communicator& group);

/// Cuts layers where they stand in a model: they keep their names, and whoever calls them need not
/// know. Outside of them every rank has the same tensors. Dropout inside the cut regions differs
/// from rank to rank; the generator is the same on all ranks behind them.
///
///   TensorParallel parallel(model, group);
///   parallel.cut(block.self_attention);
///   parallel.cut(mlp.fc1, mlp.fc2);
class TensorParallel {
 public:
  /// Copies rank 0's state to all ranks of the group.
  TensorParallel(nn::Module& module, CommunicatorPtr group);

  /// By heads. Throws Error unless the ranks divide them.
  void cut(nn::MultiheadAttention& attention);
  /// The first by columns, the second, which takes what is made of its features, by rows. Throws
  /// Error unless the ranks divide those features.
  void cut(nn::Linear& first, nn::Linear& second);

  /// How a parameter was cut, by its name in the model; null: it is whole on every rank.
  const Cut* cut_of(const std::string& name) const;
  bool has_cuts() const { return !cuts_.empty(); }
  Communicator& group() const { return *group_; }

 private:
  void cut_parameter(Tensor parameter, const Cut& cut);

  const CommunicatorPtr group_;
  std::unordered_map<const void*, std::string> names_;
  std::unordered_map<std::string, Cut> cuts_;
};

/// Mean cross-entropy of logits [N, C / ranks], the classes dealt out, against labels i64 [N] of
/// all C classes. The whole logits are nowhere put together.
Tensor parallel_cross_entropy(const Tensor& logits, const Tensor& labels,
                              const CommunicatorPtr& group);

/// The norm of all gradients: parameters of which every rank has a part, and such that every rank
/// has whole, which count once.
double parallel_grad_norm(const Tensors& cut, const Tensors& whole, Communicator& group);

}  // namespace weft::dist
