#include "dist/model_parallel/parallel_layers.h"

#include <optional>

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
  Fp8Scaling* const scaling = fp8_in_force();
  if (!scaling) return false;
  scaling->share(weight,
                 [group](const Tensor& amax) { group->all_reduce(amax, ReduceOp::kMax).wait(); });
  return true;
}

}  // namespace

Tensor column_parallel_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                              const CommunicatorPtr& group, Tokens tokens, int64_t length) {
  const bool is_dealt_out = tokens == Tokens::kDealtOut;
  if (share_fp8_scales(weight, group)) {
    const Tensor whole =
        is_dealt_out ? gather_sequence(x, -2, group, length) : copy_to_ranks(x, group);
    return ops::linear(whole, weight, bias);
  }
  Tensor y;
  {
    const NoGrad guard;
    if (length == 0 && is_dealt_out) length = x.size(-2) * group->size();
    const Tensor whole =
        is_dealt_out ? gather_tokens(detach(x), -2, *group).finish(length) : detach(x);
    y = ops::linear(whole, weight, bias);
  }
  return record("column_parallel_linear", {x, weight, bias}, y, {x, weight},
                [=, has_bias = bias.defined()](const Backward& b) -> Tensors {
                  b.require_no_graph();
                  const Tensor mine = b.saved(0), weight = b.saved(1);
                  Shape shape = mine.shape();
                  if (is_dealt_out) shape[mine.dim() - 2] = length;
                  const Tensor dy = ops::reshape(b.dy(), {-1, weight.size(0)});
                  Tensor dx, dw, db;
                  std::optional<Gathering> others;
                  if (is_dealt_out && b.needs(1)) others.emplace(gather_tokens(mine, -2, *group));
                  Work travels;
                  std::optional<Scattering> scattered;
                  if (b.needs(0)) {
                    dx = ops::contiguous(ops::matmul(dy, ops::cast(weight, dy.dtype())));
                    dx = ops::reshape(dx, shape);
                    if (is_dealt_out) {
                      scattered.emplace(dx, -2, *group);
                    } else {
                      travels = group->all_reduce(dx);
                    }
                  }
                  if (b.needs(1)) {
                    const Tensor x = others ? others->finish(length) : mine;
                    dw = weight_gradient(dy, x, weight.dtype());
                  }
                  if (has_bias && b.needs(2)) db = ops::sum(ops::cast(dy, weight.dtype()), {0});
                  travels.wait();
                  if (scattered) dx = scattered->finish();
                  if (dx.defined()) dx = ops::cast(dx, mine.dtype());
                  return {dx, dw, db};
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
