#include "dist/model_parallel/parallel_layers.h"

#include <optional>
#include <utility>

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

/// A leaf of its own with the elements of x.
Tensor own(const Tensor& x) {
  const NoGrad guard;
  return x.defined() ? ops::clone(detach(x)) : Tensor();
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

ColumnParallelLinear::ColumnParallelLinear(const nn::Linear& whole, CommunicatorPtr group,
                                           bool gather_output, Tokens tokens)
    : group_(std::move(group)), gather_output_(gather_output), tokens_(tokens) {
  weight =
      parameter("weight", own(equal_part(detach(whole.weight), 0, *group_, "column parallel")));
  if (whole.bias.defined()) {
    bias = parameter("bias", own(equal_part(detach(whole.bias), 0, *group_, "column parallel")));
  }
}

Tensor ColumnParallelLinear::forward(const Tensor& x) {
  const Tensor y = column_parallel_linear(x, weight, bias, group_, tokens_);
  return gather_output_ ? gather_from_ranks(y, -1, group_) : y;
}

RowParallelLinear::RowParallelLinear(const nn::Linear& whole, CommunicatorPtr group,
                                     bool input_is_parallel, Tokens tokens)
    : group_(std::move(group)), input_is_parallel_(input_is_parallel), tokens_(tokens) {
  weight = parameter("weight", own(equal_part(detach(whole.weight), 1, *group_, "row parallel")));
  bias = parameter("bias", own(whole.bias));
}

Tensor RowParallelLinear::forward(const Tensor& x) {
  return row_parallel_linear(input_is_parallel_ ? x : scatter_to_ranks(x, -1, group_), weight, bias,
                             group_, tokens_);
}

namespace {

/// This rank's rows of q, of k and of v, one after another as in the whole.
Tensor heads_of(const Tensor& in_proj, const Communicator& group) {
  Tensors parts;
  for (const Tensor& third : ops::chunk(detach(in_proj), 3, 0)) {
    parts.push_back(equal_part(third, 0, group, "attention"));
  }
  return ops::cat(parts, 0);
}

nn::Linear& checked_output(const nn::MultiheadAttention& whole, const Communicator& group) {
  check_heads(whole, group);
  return whole.out_proj;
}

}  // namespace

void check_heads(const nn::MultiheadAttention& attention, const Communicator& group) {
  WEFT_CHECK(attention.heads % group.size() == 0, "attention: {} ranks do not divide {} heads",
             group.size(), attention.heads);
}

ParallelAttention::ParallelAttention(const nn::MultiheadAttention& whole, CommunicatorPtr group,
                                     Tokens tokens)
    : out_proj(
          add<RowParallelLinear>("out_proj", checked_output(whole, *group), group, true, tokens)),
      group_(std::move(group)),
      heads_(whole.heads / group_->size()),
      tokens_(tokens) {
  in_proj_weight = parameter("in_proj_weight", own(heads_of(whole.in_proj_weight, *group_)));
  if (whole.in_proj_bias.defined()) {
    in_proj_bias = parameter("in_proj_bias", own(heads_of(whole.in_proj_bias, *group_)));
  }
}

Tensor ParallelAttention::forward(const Tensor& x) {
  const Tensor qkv = column_parallel_linear(x, in_proj_weight, in_proj_bias, group_, tokens_);
  return out_proj(ops::self_attention(qkv, heads_));
}

SequenceParallelLayerNorm::SequenceParallelLayerNorm(const nn::LayerNorm& whole,
                                                     CommunicatorPtr group)
    : group_(std::move(group)), eps_(whole.eps) {
  weight = parameter("weight", own(whole.weight));
  bias = parameter("bias", own(whole.bias));
}

Tensor SequenceParallelLayerNorm::forward(const Tensor& x) {
  return ops::layer_norm(x, copy_to_ranks(weight, group_), copy_to_ranks(bias, group_), eps_);
}

}  // namespace weft::dist
