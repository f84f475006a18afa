// Scaled dot-product attention and its gradient, per batch b and head h.
//
//   S = scale Q K^T                    [Tq, Tk]; causal: query i sees the keys j <= i only;
//                                      mask: query i sees key j where mask[b,h,i,j], too, or has
//                                      mask[b,h,i,j] added to its score, where -inf hides the key
//                                      (numbers of at most -1e30: see kLeastAdded)
//   P = softmax(S), lse = log sum exp(S) along the keys
//   out = dropout(P) V                 dropout keeps elements with probability 1 - p, times 1/(1-p)
//
// Backward, from lse, not a stored P (Dao et al., "FlashAttention", NeurIPS 2022, appendix B):
//   P = exp(S - lse), dP = dropout(dout V^T), D = sum(dout * out) along the head dimension,
//   dS = P * (dP - D), dq = scale dS K, dk = scale dS^T Q, dv = dropout(P)^T dout
//
// q, out, dout, dq: [B, H, Tq, D]; k, v, dk, dv: [B, H / n, Tk, D], each of whose heads serves n
// neighbouring heads of q (grouped heads), one where n = 1, and has the sum of their gradients;
// mask: [B, H, Tq, Tk], bool or of lse's dtype, any strides, or undefined, beside a scale other
// than 0; one dtype (f64 f32 f16 bf16). Any batch, head and token strides, so views of a fused [B,
// T, 3, H, D] buffer and of a [B, T, H, D] output need no copy; the head dimension has unit stride.
// lse: contiguous [B, H, Tq], f32 (f64 for f64). Outputs are assigned (=). The softmax is in f32
// (f64 for f64), the products are as `numerics` says (kernels/gemm/matmul_numerics.h). A query that
// sees no key has out = 0 and lse = -inf.
//
// Element n of the row-major [B, H, Tq, Tk] scores is dropped when
// uniform_from_bits(philox4x32(seed, stream, offset + n / 4)[n % 4]) < p: backward draws the same
// numbers, and dropout of kernels/dropout drops the same elements.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/gemm/matmul_numerics.h"
#include "kernels/op.h"

namespace weft::kernels {

/// Masks that add a dtype's least number mean to hide. Where such a number, finite and at most
/// this, is added, the score is kMaskedScore whatever the product: beside others the key is hidden,
/// and a query that sees no others sees these alike, as it would by rounding. From it lse keeps log
/// sum exp to 1e-3, where beside -1e38 it would be lost, and with it P of backward.
inline constexpr double kLeastAdded = -1e30, kMaskedScore = -16384;

class CudnnGraph;  // kernels/device/cudnn_graph.h

struct AttentionProblem {
  Tensor q, k, v;
  Tensor out;         // forward: written; backward: the forward's output
  Tensor lse;         // forward: written; backward: the forward's
  Tensor dout;        // backward only: the gradient of out
  Tensor dq, dk, dv;  // backward only: written
  Tensor mask;        // may be undefined
  double scale = 1;   // usually 1 / sqrt(D)
  bool causal = false;
  double dropout = 0;  // p, in [0, 1)
  uint64_t seed = 0, stream = 0, offset = 0;
  /// i64 of one element on the device, or undefined. stream stands for stream + *moved, so that a
  /// captured graph, which repeats its arguments, draws other masks.
  Tensor moved;
  /// f16: P and dS may be rounded to f16 before the products, as a GPU's tensor cores take them;
  /// false keeps them in f32. Those of bf16 may always be rounded.
  bool rounds_scores = true;
  MatmulNumerics numerics = matmul_numerics();

  /// Philox blocks that dropout uses: the next draw from the stream starts at offset + blocks().
  uint64_t blocks() const {
    return dropout > 0 ? (q.size(0) * q.size(1) * q.size(2) * k.size(2) + 3) / 4 : 0;
  }
  /// On a CPU, where `moved` can be read.
  uint64_t drawn_stream() const {
    return stream + (moved.defined() ? static_cast<uint64_t>(*moved.data<int64_t>()) : 0);
  }
  /// What w >> 9 of a score's word w is below where the score is dropped.
  uint32_t threshold() const {
    return static_cast<uint32_t>(std::max(0.0, std::ceil(dropout * 0x1p23 - 0.5)));
  }
  bool backward() const { return dout.defined(); }
  DType dtype() const { return q.dtype(); }
  Device device() const { return q.device(); }
  std::string describe() const;

  // For autotuning (kernels/op.h).
  std::string tuning_key() const;
  std::vector<Tensor> written() const;
};

/// Each head of q has its own keys, and sees all of them but for causality: what most variants
/// take.
bool attention_is_unmasked(const AttentionProblem& problem);
/// A row of scores, and in backward two columns for each head that shares the keys, fit a GPU's
/// shared memory.
bool attention_fits_shared_rows(const AttentionProblem& problem);
/// Heads of up to 128 columns.
bool attention_fits_tiles(const AttentionProblem& problem);
/// Heads of up to 128 columns whose rows begin at multiples of 16 bytes, for tensor cores: 16-bit
/// ones, and f32 ones in TF32's mode, truncated.
bool attention_fits_mma(const AttentionProblem& problem);
/// Of those, the ones whose keys and values fit a GPU's shared memory and registers at once.
bool attention_fits_short(const AttentionProblem& problem);
/// The same where the device has the shared memory for attention_cuda_flash's tiles.
bool attention_fits_flash(const AttentionProblem& problem);
/// The condition of attention_cuda_wgmma, on a device of capability 9.0: forward, 16-bit heads of
/// more than 32 and up to 256 columns in tensors that TMA can address, with any mask, heads that
/// share keys.
bool attention_fits_wgmma(const AttentionProblem& problem);
/// The same of backward.
bool attention_fits_wgmma_backward(const AttentionProblem& problem);
/// f16 or bf16 on a device, with P and dS rounded to it, heads of up to 128 columns and a multiple
/// of 8 whose rows begin at multiples of 16 bytes, ieee numerics, no dropout, whose masks are
/// others there; the library was found, and has a plan.
bool attention_fits_cudnn(const AttentionProblem& problem);

/// The graph that cuDNN's fused engines recognise, by the problem's shapes, layouts and options;
/// only in the cuda flavour.
CudnnGraph attention_cudnn_graph(const AttentionProblem& problem);

WEFT_DECLARE_OP(attention, AttentionProblem);

}  // namespace weft::kernels
