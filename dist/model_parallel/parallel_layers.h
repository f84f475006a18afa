// Layers cut over the ranks of a group, as modules and as the functions that they call.
//
//   x -> ColumnParallelLinear -> gelu -> RowParallelLinear -> y
//
// A column-parallel linear keeps rows of W [out, in], hence a part of the output's features; a
// row-parallel one keeps columns, hence takes a part of the input's features and adds up partial
// results. One after the other they need one all_reduce in forward and one in backward. Attention
// is cut by heads in the same way. tensor_parallel.h cuts the layers of a whole model.
#pragma once

#include "dist/comm/communicator.h"
#include "nn/layers.h"

namespace weft::dist {

/// How a layer takes and gives tokens [.., T, W]: whole on every rank, or dealt out along T,
/// outside the cut region.
enum class Tokens : uint8_t { kWhole, kDealtOut };

/// x W^T + b with this rank's rows of W. The gradient of x is summed over the ranks; that sum
/// travels while the weight's gradient is computed. Of dealt-out tokens, `length` together (0: as
/// many as all parts have), only this rank's are kept for backward: the others come again while the
/// gradient of x is computed.
Tensor column_parallel_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                              const CommunicatorPtr& group, Tokens tokens, int64_t length = 0);
/// x W^T with this rank's columns of W, summed over the ranks, + b.
Tensor row_parallel_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const CommunicatorPtr& group, Tokens tokens);
/// Throws Error unless the ranks divide the heads.
void check_heads(const nn::MultiheadAttention& attention, const Communicator& group);

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

}  // namespace weft::dist
