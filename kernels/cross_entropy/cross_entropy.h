// Cross-entropy of logits with hard or soft labels, one loss per row, and its gradient.
//
//   lse[i] = log(sum_c exp(logits[i, c]))
//   t[i, c] = (1 - smoothing) * target[i, c] + smoothing / C
//   loss[i] = sum_c t[i, c] * (lse[i] - logits[i, c])
//   dlogits[i, c] = (exp(logits[i, c] - lse[i]) * sum_k t[i, k] - t[i, c]) * dloss[i]
//
// target is one-hot at labels[i] for hard labels, or labels itself for soft ones, whose rows need
// not sum to 1. A row whose hard label is ignore_index has loss 0 and gradient 0. This is PyTorch's
// cross_entropy without class weights and with reduction "none"; its "mean" divides the sum by the
// number of rows that are not ignored.
//
// Shapes: logits, dlogits [N, C]; labels i64 [N] (hard) or floating [N, C] (soft); loss, lse,
// dloss [N]. Any strides: dloss is often a scalar expanded with stride 0. logits, dlogits and soft
// labels are f32, bf16 and f16 in any mixture, or all f64; loss, lse and dloss are f32 (f64).
// Arithmetic is in f32 (f64). The caller has checked that hard labels lie in [0, C) or are ignored.
// Every output is assigned (=); dlogits may be logits' memory.
//
// With loss and dlogits given, both come from one pass over the logits: dloss must be known before,
// as it is for the mean over a batch. lse is an output then.
#pragma once

#include "kernels/op.h"

namespace weft::kernels {

struct CrossEntropyProblem {
  Tensor logits;
  Tensor labels;
  Tensor loss;     // forward: output
  Tensor lse;      // forward: output, optional; backward alone: forward's
  Tensor dloss;    // backward: the gradient of loss
  Tensor dlogits;  // backward: output
  double label_smoothing = 0;
  int64_t ignore_index = -100;

  bool forward() const { return loss.defined(); }
  bool backward() const { return dlogits.defined(); }
  bool hard() const { return labels.dtype() == DType::i64; }
  DType dtype() const { return logits.dtype(); }
  Device device() const { return logits.device(); }
  std::string describe() const {
    return fmt::format("cross_entropy({}, labels={}, label_smoothing={}, forward={}, backward={})",
                       logits, labels, label_smoothing, forward(), backward());
  }
};

WEFT_DECLARE_OP(cross_entropy, CrossEntropyProblem);

}  // namespace weft::kernels
