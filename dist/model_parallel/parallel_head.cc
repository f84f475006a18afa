#include "dist/model_parallel/parallel_head.h"

#include <cmath>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "dist/model_parallel/rank_parts.h"

namespace weft::dist {
namespace {

/// Where this rank's classes begin.
int64_t first_class(const Tensor& logits, int64_t classes, const Communicator& group) {
  const int64_t mine = even_part(classes, group.size(), group.rank());
  WEFT_CHECK(logits.dim() == 2 && logits.size(1) == mine,
             "parallel head: expected logits [N, {}] of {} classes on {} ranks, got {}", mine,
             classes, group.size(), logits);
  return even_begin(classes, group.size(), group.rank());
}

/// [N, 1]: ones, or zeros for rows that do not count.
Tensor counted_rows(const Tensor& labels, int64_t classes, DType dtype, int64_t ignore_index) {
  const int64_t rows = labels.size(0);
  if (is_floating(labels.dtype())) return ops::ones({rows, 1}, dtype, labels.device());
  const Tensor wide = ops::cast(labels, DType::i64);  // which has any ignore_index
  if (labels.device().type == DeviceType::cpu) {
    const Tensor list = ops::contiguous(wide);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t c = list.data<int64_t>()[i];
      WEFT_CHECK(c == ignore_index || (c >= 0 && c < classes),
                 "parallel_cross_entropy: label {} at position {} is not one of the {} classes", c,
                 i, classes);
    }
  }
  // On a GPU nobody has looked at the labels: one that is no class is NaN, as in
  // ops::cross_entropy.
  const auto number = [&](int64_t n) {
    return ops::full({}, static_cast<double>(n), DType::i64, labels.device());
  };
  const Tensor is_no_class =
      ops::logical_or(ops::lt(wide, number(0)), ops::le(number(classes), wide));
  const Tensor counts =
      ops::masked_fill(ops::ones({rows}, dtype, labels.device()), is_no_class, NAN);
  return ops::reshape(ops::masked_fill(counts, ops::eq(wide, number(ignore_index)), 0), {rows, 1});
}

}  // namespace

Tensor parallel_cross_entropy(const Tensor& logits, const Tensor& labels, int64_t classes,
                              const CommunicatorPtr& group,
                              const ops::CrossEntropyOptions& options) {
  const int64_t first = first_class(logits, classes, *group), rows = logits.size(0),
                mine = logits.size(1);
  const bool is_hard = !is_floating(labels.dtype());
  WEFT_CHECK(labels.shape() == (is_hard ? Shape{rows} : Shape{rows, classes}),
             "parallel_cross_entropy: labels must be integers [{}] or probabilities [{}, {}], got "
             "{}",
             rows, rows, classes, labels);
  const double smoothing = options.label_smoothing;
  WEFT_CHECK(smoothing >= 0 && smoothing <= 1,
             "parallel_cross_entropy: label_smoothing must lie in [0, 1], got {}", smoothing);
  const DType wide = logits.dtype() == DType::f64 ? DType::f64 : DType::f32;
  Tensor loss, softmax, target, total_target, row_scale;
  {
    const NoGrad guard;
    const Tensor counts = counted_rows(labels, classes, wide, options.ignore_index);
    // Of this rank's classes, and the sum over all: (1 - s) label + s / C.
    Tensor label;
    if (is_hard) {
      const Tensor indices = ops::to(ops::arange(first, first + mine), labels.device());
      const Tensor column = ops::reshape(ops::cast(labels, DType::i64), {rows, 1});
      label = ops::cast(ops::eq(column, indices), wide);
      total_target = counts;
    } else {
      label = ops::narrow(ops::cast(labels, wide), 1, first, mine);
      total_target = ops::sum(ops::cast(labels, wide), {1}, true) * (1 - smoothing) + smoothing;
    }
    target = (label * (1 - smoothing) + smoothing / static_cast<double>(classes)) * counts;

    const Tensor z = ops::cast(detach(logits), wide);
    const Tensor largest = ops::max(z, {1}, true);
    group->all_reduce(largest, ReduceOp::kMax).wait();
    const Tensor shifted = z - largest, e = ops::exp(shifted);
    // A logit of -inf counts for nothing where nothing is expected of its class.
    const Tensor unasked = ops::eq(target, ops::full({}, 0, wide, target.device()));
    const Tensor weighted = ops::masked_fill(target * shifted, unasked, 0);
    // Together, for the latency of one.
    const Tensor sums = ops::stack({ops::sum(e, {1}, true), ops::sum(weighted, {1}, true)}, 0);
    group->all_reduce(sums).wait();
    const Tensor total = ops::select(sums, 0, 0), chosen = ops::select(sums, 0, 1);
    softmax = e / total;
    // 0/0 = NaN when every row is ignored, as in ops::cross_entropy.
    row_scale = counts / ops::sum(counts);
    loss = ops::sum((total_target * ops::log(total) - chosen) * row_scale);
  }
  return record("parallel_cross_entropy", {logits}, loss,
                {softmax, target, total_target, row_scale},
                [dtype = logits.dtype()](const Backward& b) -> Tensors {
                  b.require_no_graph();
                  const Tensor d = b.saved(0) * b.saved(2) - b.saved(1);
                  return {ops::cast(d * b.saved(3) * b.dy(), dtype)};
                });
}

Tensor parallel_argmax(const Tensor& logits, int64_t classes, const CommunicatorPtr& group) {
  const NoGrad guard;
  const int64_t first = first_class(logits, classes, *group);
  const int ranks = group->size();
  const Tensor z = detach(logits);
  const Tensor best = ops::max(z, {1}, true);
  const Tensor index = ops::reshape(ops::argmax(z, 1), {-1, 1}) +
                       ops::full({}, static_cast<double>(first), DType::i64, logits.device());
  const std::vector<int64_t> one_each(ranks, 1);
  Gathering values(best, 1, one_each, *group), indices(index, 1, one_each, *group);
  // The first of equals is on the first of their ranks.
  const Tensor winner = ops::argmax(values.finish(ranks), 1);
  const Tensor mask =
      ops::eq(ops::reshape(winner, {-1, 1}), ops::to(ops::arange(0, ranks), logits.device()));
  return ops::sum(ops::cast(mask, DType::i64) * indices.finish(ranks), {1});
}

}  // namespace weft::dist
