// Losses. Inside an Autocast they are computed in f32.
#pragma once

#include "autograd/ops.h"

namespace weft::nn {

using Reduction = ops::LossReduction;

/// Mean cross-entropy of logits [N, C] against class indices i64 [N] or probabilities [N, C].
using ops::cross_entropy;

/// (x - y)^2
Tensor mse_loss(const Tensor& x, const Tensor& y, Reduction reduction = Reduction::kMean);
/// |x - y|
Tensor l1_loss(const Tensor& x, const Tensor& y, Reduction reduction = Reduction::kMean);
/// -(y log sigmoid(x) + (1 - y) log(1 - sigmoid(x))) of logits x, as
/// max(x, 0) - x y + log(1 + exp(-|x|)), which neither overflows nor cancels.
Tensor bce_with_logits(const Tensor& x, const Tensor& y, Reduction reduction = Reduction::kMean);

}  // namespace weft::nn
