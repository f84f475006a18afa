// Linear layers cut over the ranks of a group: x -> column-parallel -> gelu -> row-parallel -> y.
//
// A column-parallel linear has rows of W [out, in], hence a part of the output's features; a
// row-parallel one has columns, hence takes a part of the input's features and adds up partial
// results. Together they need one all_reduce in forward and one in backward. tensor_parallel.h cuts
// the layers of a whole model, attention by heads.
#pragma once

#include "autograd/tape.h"
#include "dist/comm/communicator.h"

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
/// The same of several layers on one x: it and the gradient that they have together travel once.
Tensors column_parallel_linears(const Tensor& x, const Tensors& weights, const Tensors& biases,
                                const CommunicatorPtr& group, Tokens tokens, int64_t length = 0);
/// x W^T with this rank's columns of W, summed over the ranks, + b.
Tensor row_parallel_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const CommunicatorPtr& group, Tokens tokens);

}  // namespace weft::dist
