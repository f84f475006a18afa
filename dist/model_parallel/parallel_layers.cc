#include "dist/model_parallel/parallel_layers.h"

#include <optional>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/fp8.h"
#include "autograd/ops.h"
#include "dist/model_parallel/rank_collectives.h"
#include "dist/model_parallel/rank_parts.h"
#include "kernels/gemm/gemm.h"

namespace weft::dist {
namespace {

/// dy^T x, which leaves the product in the weight's dtype, as ops::linear's does.
Tensor weight_gradient(const Tensor& dy, const Tensor& x, DType dtype) {
  const Tensor rows = ops::reshape(ops::cast(x, dy.dtype()), {-1, x.size(-1)});
  const Tensor dw = Tensor::empty({dy.size(1), rows.size(1)}, dtype, dy.device());
  kernels::gemm({.a = ops::transpose(dy, 0, 1), .b = rows, .c = dw});
  return dw;
}

/// In fp8 the parts of a layer's tensors have the scale of the whole. Whether it is fp8.
bool share_fp8_scales(const Tensor& weight, const CommunicatorPtr& group) {
  const std::optional<Fp8Scaling>& scaling = fp8_in_force();
  if (!scaling) return false;
  scaling->share(weight,
                 [group](const Tensor& amax) { group->all_reduce(amax, ReduceOp::kMax).wait(); });
  return true;
}

}  // namespace

Tensor column_parallel_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                              const CommunicatorPtr& group, Tokens tokens, int64_t length) {
  return column_parallel_linears(x, {weight}, {bias}, group, tokens, length)[0];
}

Tensors column_parallel_linears(const Tensor& x, const Tensors& weights, const Tensors& biases,
                                const CommunicatorPtr& group, Tokens tokens, int64_t length) {
  const bool is_dealt_out = tokens == Tokens::kDealtOut;
  const size_t layers = weights.size();
  const auto results_of = [&](const Tensor& whole) {
    Tensors results;
    for (size_t i = 0; i < layers; ++i) {
      results.push_back(ops::linear(whole, weights[i], biases[i]));
    }
    return results;
  };
  bool is_fp8 = false;
  for (const Tensor& weight : weights) is_fp8 = share_fp8_scales(weight, group);
  if (is_fp8) {
    return results_of(is_dealt_out ? gather_sequence(x, -2, group, length)
                                   : copy_to_ranks(x, group));
  }
  Tensors results;
  Tensor kept = x;
  {
    const NoGrad guard;
    // Products round a wide x: so it travels, and is kept for backward, in their dtype.
    const DType dtype = autocast_products(x, weights[0]);
    if (itemsize(dtype) < itemsize(x.dtype())) kept = ops::cast(detach(x), dtype);
    if (length == 0 && is_dealt_out) length = x.size(-2) * group->size();
    results = results_of(is_dealt_out ? gather_tokens(detach(kept), -2, *group).finish(length)
                                      : detach(kept));
  }
  Tensors inputs = {x}, saved = {kept};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  inputs.insert(inputs.end(), biases.begin(), biases.end());
  saved.insert(saved.end(), weights.begin(), weights.end());
  return record(
      "column_parallel_linear", inputs, results, saved,
      [=, dtype_of_x = x.dtype()](const Backward& b) -> Tensors {
        b.require_no_graph();
        const auto weight_at = [](size_t layer) { return static_cast<int>(1 + layer); };
        const auto bias_at = [=](size_t layer) { return static_cast<int>(1 + layers + layer); };
        const Tensor mine = b.saved(0);
        Shape shape = mine.shape();
        if (is_dealt_out) shape[mine.dim() - 2] = length;
        Tensors gradients(1 + 2 * layers), dy(layers);
        bool needs_weights = false;
        for (size_t i = 0; i < layers; ++i) {
          needs_weights |= b.needs(weight_at(i));
          const Tensor& gradient = b.dy(static_cast<int>(i));
          if (gradient.defined()) dy[i] = ops::reshape(gradient, {-1, gradient.size(-1)});
        }
        std::optional<Gathering> others;
        if (is_dealt_out && needs_weights) others.emplace(gather_tokens(mine, -2, *group));
        Tensor& dx = gradients[0];
        Work travels;
        std::optional<Scattering> scattered;
        if (b.needs(0)) {
          for (size_t i = 0; i < layers; ++i) {
            if (!dy[i].defined()) continue;
            const Tensor part = ops::matmul(dy[i], ops::cast(b.saved(weight_at(i)), dy[i].dtype()));
            dx = dx.defined() ? dx + part : part;
          }
          dx = ops::reshape(ops::contiguous(dx), shape);
          if (is_dealt_out) {
            scattered.emplace(dx, -2, *group);
          } else {
            travels = group->all_reduce(dx);
          }
        }
        const Tensor whole = others ? others->finish(length) : mine;
        for (size_t i = 0; i < layers; ++i) {
          if (!dy[i].defined()) continue;
          const DType dtype = b.saved(weight_at(i)).dtype();
          if (b.needs(weight_at(i))) {
            gradients[weight_at(i)] = weight_gradient(dy[i], whole, dtype);
          }
          if (b.needs(bias_at(i))) gradients[bias_at(i)] = ops::sum(ops::cast(dy[i], dtype), {0});
        }
        travels.wait();
        if (scattered) dx = scattered->finish();
        if (dx.defined()) dx = ops::cast(dx, dtype_of_x);
        return gradients;
      });
}

Tensor row_parallel_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const CommunicatorPtr& group, Tokens tokens) {
  share_fp8_scales(weight, group);
  const Tensor partial = ops::linear(x, weight);
  if (tokens == Tokens::kWhole) {
    const Tensor y = reduce_from_ranks(partial, group);
    return bias.defined() ? y + ops::cast(bias, y.dtype()) : y;
  }
  const Tensor y = reduce_scatter_sequence(partial, -2, group);
  // Each rank adds the bias to its tokens: its gradient is a sum over the ranks.
  return bias.defined() ? y + ops::cast(copy_to_ranks(bias, group), y.dtype()) : y;
}

}  // namespace weft::dist
