#include "kernels/softmax/softmax.h"

#include <cmath>
#include <memory>
#include <utility>

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/raw.h"
#include "core/view.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/multi_tensor_scale/multi_tensor_scale.h"

namespace weft::ops {
namespace {

Tensor compute(std::string_view name, const Tensor& input, int64_t dim, bool log) {
  raw::check_floating(name, input);
  const Tensor x = autocast_f32(input);
  const int axis = wrap_dim(dim, x.dim(), name);
  Tensor y = raw::empty_like(x);
  kernels::softmax({.x = x, .y = y, .axis = axis, .log = log});
  return record(name, {x}, y, {y}, [axis, log](const Backward& b) -> Tensors {
    const Tensor y = b.saved(0);
    const Tensor& dy = b.dy();
    if (b.create_graph()) {
      if (log) return {sub(dy, mul(exp(y), sum(dy, {axis}, true)))};
      return {mul(y, sub(dy, sum(mul(dy, y), {axis}, true)))};
    }
    Tensor dx = raw::empty_like(y);
    kernels::softmax({.y = y, .dy = cast(dy, y.dtype()), .dx = dx, .axis = axis, .log = log});
    return {dx};
  });
}

}  // namespace

Tensor softmax(const Tensor& x, int64_t dim) { return compute("softmax", x, dim, false); }
Tensor log_softmax(const Tensor& x, int64_t dim) { return compute("log_softmax", x, dim, true); }

Tensor cross_entropy(const Tensor& logits, const Tensor& labels,
                     const CrossEntropyOptions& options) {
  raw::check_operands("cross_entropy", {logits, labels}, 1);
  WEFT_CHECK(logits.dim() == 2 && logits.size(1) > 0,
             "cross_entropy: expected logits [N, C] with C > 0, got {}", logits);
  const int64_t rows = logits.size(0), classes = logits.size(1);
  const bool hard = !is_floating(labels.dtype());
  WEFT_CHECK(labels.shape() == (hard ? Shape{rows} : logits.shape()),
             "cross_entropy: labels must be integers [{}] or probabilities {}, got {}", rows,
             logits.shape(), labels);
  WEFT_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1,
             "cross_entropy: label_smoothing must lie in [0, 1], got {}", options.label_smoothing);
  raw::check_f64("cross_entropy", {logits, labels});
  const Tensor targets = hard ? raw::contiguous(labels, DType::i64) : labels;
  // On a device labels are neither looked at nor waited for: the kernel gives NaN for one that is
  // not a class, and the number of counted rows stays there too.
  const bool on_cpu = logits.device().type == DeviceType::cpu;
  int64_t counted = rows;
  if (hard && on_cpu) {
    const int64_t* label = targets.data<int64_t>();
    for (int64_t i = 0; i < rows; ++i) {
      const bool is_ignored = label[i] == options.ignore_index;
      counted -= is_ignored;
      WEFT_CHECK(is_ignored || (label[i] >= 0 && label[i] < classes),
                 "cross_entropy: label {} at position {} is not one of the {} classes", label[i], i,
                 classes);
    }
  }
  const DType dtype = logits.dtype() == DType::f64 ? DType::f64 : DType::f32;
  Tensor scale;  // 1 / counted rows; 1 / 0 makes NaN of the loss when every row is ignored
  {
    NoGrad guard;
    if (hard && !on_cpu) {
      const Tensor ignored =
          full({}, static_cast<double>(options.ignore_index), DType::i64, logits.device());
      scale = reciprocal(cast(sum(ne(targets, ignored)), dtype));
    } else {
      scale = full({}, 1.0 / static_cast<double>(counted), dtype, logits.device());
    }
  }
  kernels::CrossEntropyProblem problem{.logits = logits,
                                       .labels = targets,
                                       .loss = Tensor::empty({rows}, dtype, logits.device()),
                                       .lse = Tensor::empty({rows}, dtype, logits.device()),
                                       .label_smoothing = options.label_smoothing,
                                       .ignore_index = options.ignore_index};
  // On a device the gradient for dy = 1 comes with the loss, in one pass over the logits. f32 alone
  // has the range for a loss scale to multiply it later.
  const auto gradient = std::make_shared<Tensor>();
  if (!on_cpu && logits.dtype() == DType::f32 && is_recording({logits})) {
    *gradient = raw::empty_like(logits);
    problem.dloss = view::expand(scale, {rows});
    problem.dlogits = *gradient;
  }
  kernels::cross_entropy(problem);
  Tensor loss;
  {
    NoGrad guard;
    loss = mul(sum(problem.loss), scale);
  }
  return record("cross_entropy", {logits, labels}, loss, {logits, targets, problem.lse, scale},
                [=](const Backward& b) -> Tensors {
                  b.require_no_graph();
                  const Tensor logits = b.saved(0), lse = b.saved(2);
                  WEFT_CHECK(!b.needs(1), "cross_entropy: soft labels have no gradient");
                  const Tensor dy = cast(b.dy(), lse.dtype());
                  Tensor dlogits = std::exchange(*gradient, {});
                  if (dlogits.defined()) {
                    kernels::multi_tensor_scale({.tensors = {dlogits}, .factor_from = dy});
                    return {dlogits, {}};
                  }
                  // No gradient came with the loss, or a graph that was retained has used it up.
                  dlogits = raw::empty_like(logits);
                  kernels::cross_entropy({.logits = logits,
                                          .labels = b.saved(1),
                                          .lse = lse,
                                          .dloss = view::expand(mul(dy, b.saved(3)), lse.shape()),
                                          .dlogits = dlogits,
                                          .label_smoothing = options.label_smoothing,
                                          .ignore_index = options.ignore_index});
                  return {dlogits, {}};
                });
}

}  // namespace weft::ops
