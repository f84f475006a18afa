// Losses made of recorded ops. Inside an Autocast they are computed in f32.
#include "autograd/autocast.h"
#include "autograd/fused.h"
#include "autograd/ops.h"
#include "autograd/raw.h"

namespace weft::ops {
namespace {

Tensor number(const Tensor& like, double value) {
  return full({}, value, like.dtype(), like.device());
}

Tensor reduced(std::string_view op, const Tensor& loss, LossReduction reduction) {
  WEFT_CHECK(reduction != LossReduction::kBatchMean || op == "kl_div",
             "{}: a sum over the batch's size is kl_div's alone", op);
  switch (reduction) {
    case LossReduction::kMean:
      return mean(loss);
    case LossReduction::kSum:
      return sum(loss);
    case LossReduction::kBatchMean:
      return sum(loss) / static_cast<double>(loss.dim() > 0 ? loss.size(0) : 1);
    default:
      return loss;
  }
}

}  // namespace

Tensor nll_loss(const Tensor& log_probabilities, const Tensor& labels,
                const NllLossOptions& options) {
  raw::check_operands("nll_loss", {log_probabilities, labels, options.weight}, 1);
  const Tensor x = autocast_f32(log_probabilities);
  WEFT_CHECK(x.dim() > 0, "nll_loss: expected log probabilities [C], [N, C] or [N, C, ...], got {}",
             x);
  const int axis = x.dim() > 1 ? 1 : 0;
  const int64_t classes = x.shape()[axis];
  Shape expected = x.shape();
  expected.erase(axis);
  WEFT_CHECK(labels.defined() && labels.dtype() == DType::i64 && labels.shape() == expected,
             "nll_loss: expected i64 labels of shape {}, got {}", expected, labels);
  const Tensor given = options.weight;
  WEFT_CHECK(!given.defined() || given.shape() == Shape{classes},
             "nll_loss: expected a weight of shape [{}], got {}", classes, given);
  // On a device the lookup below names the index.
  bool may_ignore = labels.device().type != DeviceType::cpu;
  if (!may_ignore) {
    const Tensor known = raw::contiguous(labels);
    for (int64_t i = 0; i < known.numel(); ++i) {
      const int64_t label = known.data<int64_t>()[i];
      const bool is_ignored = label == options.ignore_index;
      may_ignore = may_ignore || is_ignored;
      WEFT_CHECK(is_ignored || (label >= 0 && label < classes),
                 "nll_loss: label {} at position {} is not one of the {} classes", label, i,
                 classes);
    }
  }
  if (!given.defined() && !may_ignore) {
    const Tensor picked = squeeze(gather(x, axis, unsqueeze(labels, axis)), axis);
    return neg(reduced("nll_loss", picked, options.reduction));
  }
  // f16 cannot hold the sum of 65,520 weights.
  const DType wide = raw::widened(x.dtype());
  const Tensor weight = given.defined() ? cast(given, wide) : ones({classes}, wide, x.device());
  const Tensor ignored = eq(labels, number(labels, static_cast<double>(options.ignore_index)));
  const Tensor label = masked_fill(labels, ignored, 0);
  Tensor picked_weight = reshape(index_select(weight, 0, reshape(label, {-1})), expected);
  picked_weight = masked_fill(picked_weight, ignored, 0);
  const Tensor picked = squeeze(gather(x, axis, unsqueeze(label, axis)), axis);
  // Not the product alone: 0 times an infinity of an ignored label would be NaN.
  const Tensor loss = masked_fill(neg(mul(picked, picked_weight)), ignored, 0);
  const bool is_mean = options.reduction == LossReduction::kMean;
  return cast(
      is_mean ? div(sum(loss), sum(picked_weight)) : reduced("nll_loss", loss, options.reduction),
      x.dtype());
}

Tensor kl_div(const Tensor& input, const Tensor& targets, LossReduction reduction,
              bool log_target) {
  raw::check_operands("kl_div", {input, targets}, 2);
  const Tensor x = autocast_f32(input), target = autocast_f32(targets);
  if (log_target) return reduced("kl_div", mul(exp(target), sub(target, x)), reduction);
  // 0 log 0 is 0.
  const Tensor is_zero = eq(target, number(target, 0));
  const Tensor entropy = masked_fill(mul(target, log(masked_fill(target, is_zero, 1))), is_zero, 0);
  return reduced("kl_div", sub(entropy, mul(target, x)), reduction);
}

Tensor smooth_l1_loss(const Tensor& input, const Tensor& targets, LossReduction reduction,
                      double beta) {
  raw::check_operands("smooth_l1_loss", {input, targets}, 2);
  WEFT_CHECK(beta >= 0, "smooth_l1_loss: beta must not be negative, got {}", beta);
  const auto loss = [beta](const Tensors& t) {
    const Tensor difference = sub(t[0], t[1]), distance = abs(difference);
    if (beta == 0) return distance;
    // Not the square first, which may leave f16's range.
    return where(lt(distance, number(distance, beta)), mul(difference, difference * (0.5 / beta)),
                 distance - 0.5 * beta);
  };
  return reduced("smooth_l1_loss", fused(loss, {autocast_f32(input), autocast_f32(targets)}),
                 reduction);
}

Tensor cosine_similarity(const Tensor& first, const Tensor& second, int64_t dim, double eps) {
  raw::check_operands("cosine_similarity", {first, second}, 2);
  const DType dtype = promote(autocast_f32(first).dtype(), autocast_f32(second).dtype());
  const DType wide = raw::widened(dtype);
  const Shape shape = broadcast_shapes(first.shape(), second.shape(), "cosine_similarity");
  const Tensor a = expand(cast(first, wide), shape), b = expand(cast(second, wide), shape);
  const int axis = wrap_dim(dim, shape.size(), "cosine_similarity");
  const auto length = [&](const Tensor& x) {
    return maximum(norm(x, 2, {axis}, true), number(x, eps));
  };
  // Not the sum of products over the lengths', both of which may leave f32's range.
  const auto product = [](const Tensors& t) { return mul(div(t[0], t[1]), div(t[2], t[3])); };
  return cast(sum(fused(product, {a, length(a), b, length(b)}), {axis}), dtype);
}

}  // namespace weft::ops
