#include "dist/comm/tree_accumulator.h"

#include <utility>

#include "autograd/ops.h"

namespace weft::dist {

void TreeAccumulator::push(Tensors gradients) {
  partials_.push_back({1, std::move(gradients)});
  while (partials_.size() > 1 &&
         partials_.back().micro_batches == partials_[partials_.size() - 2].micro_batches) {
    merge_last();
  }
}

void TreeAccumulator::merge_last() {
  const NoGrad guard;
  Partial right = std::move(partials_.back());
  partials_.pop_back();
  Partial& left = partials_.back();
  WEFT_CHECK(left.sum.size() == right.sum.size(), "TreeAccumulator: {} gradients after {}",
             right.sum.size(), left.sum.size());
  left.micro_batches += right.micro_batches;
  for (size_t i = 0; i < left.sum.size(); ++i) {
    if (!right.sum[i].defined()) continue;
    if (left.sum[i].defined()) {
      ops::add_(left.sum[i], right.sum[i]);
    } else {
      left.sum[i] = right.sum[i];
    }
  }
}

Tensors TreeAccumulator::finish() {
  while (partials_.size() > 1) merge_last();
  Tensors sum = partials_.empty() ? Tensors() : std::move(partials_[0].sum);
  partials_.clear();
  return sum;
}

Tensors take_gradients(const Tensors& parameters) {
  const NoGrad guard;
  Tensors gradients;
  for (const Tensor& parameter : parameters) {
    Tensor gradient = parameter.grad();
    parameter.set_grad({});
    // A view, as of a bucket, changes with the next backward.
    if (gradient.defined() && !gradient.is_unique()) gradient = ops::clone(gradient);
    gradients.push_back(std::move(gradient));
  }
  return gradients;
}

void set_gradients(const Tensors& parameters, const Tensors& gradients) {
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].set_grad(gradients[i]);
}

}  // namespace weft::dist
