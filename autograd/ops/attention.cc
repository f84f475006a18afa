#include "kernels/attention/attention.h"

#include <cmath>

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "autograd/raw.h"
#include "core/view.h"

namespace weft::ops {
namespace {

using kernels::AttentionProblem;

/// The problem of a forward pass, with its random stream reserved.
AttentionProblem make_problem(std::string_view op, const Tensor& q, const Tensor& k,
                              const Tensor& v, const AttentionOptions& options) {
  WEFT_CHECK(options.dropout >= 0 && options.dropout < 1, "{}: dropout must lie in [0, 1), got {}",
             op, options.dropout);
  AttentionProblem p{.q = q, .k = k, .v = v};
  p.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(3))));
  p.causal = options.causal;
  p.dropout = options.dropout;
  if (options.mask.defined()) {
    const Tensor& mask = options.mask;
    const Shape scores = {q.size(0), q.size(1), q.size(2), k.size(2)};
    raw::check_operands(op, {q, mask});
    WEFT_CHECK(
        mask.dtype() == DType::boolean && broadcast_shapes(mask.shape(), scores, op) == scores,
        "{}: expected a bool mask that broadcasts to {}, got {}", op, scores, mask);
    WEFT_CHECK(p.scale != 0, "{}: expected a scale other than 0 beside a mask", op);
    p.mask = view::expand(mask, scores);
  }
  if (p.dropout > 0) {
    // Each call has a stream of its own: the kernel counts score elements from 0 in it.
    Generator& g = generator();
    p.seed = g.seed;
    p.stream = (uint64_t{1} << 63) | (g.stream << 40) | g.take(4);
  }
  const DType statistics = q.dtype() == DType::f64 ? DType::f64 : DType::f32;
  p.lse = Tensor::empty({q.size(0), q.size(1), q.size(2)}, statistics, q.device());
  return p;
}

Tensor with_unit_stride(const Tensor& x) {
  return x.stride(-1) == 1 || x.size(-1) <= 1 ? x : contiguous(x);
}

/// [B, T, H, D] storage seen as [B, H, T, D].
Tensor empty_heads(const Tensor& like) {
  const Shape& s = like.shape();
  return view::transpose(Tensor::empty({s[0], s[2], s[1], s[3]}, like.dtype(), like.device()), 1,
                         2);
}

}  // namespace

Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value,
                 const AttentionOptions& options) {
  raw::check_operands("attention", {query, key, value}, 3);
  for (const Tensor* t : {&query, &key, &value}) {
    WEFT_CHECK(t->dim() == 4, "attention: expected [B, H, T, D], got {}", *t);
  }
  const int64_t heads = query.size(1), key_heads = key.size(1);
  WEFT_CHECK(key.shape() == value.shape() && query.size(0) == key.size(0) &&
                 (heads == key_heads || (key_heads > 0 && heads % key_heads == 0)) &&
                 query.size(3) == key.size(3),
             "attention: q {}, k {} and v {} do not fit together", query, key, value);
  const Tensor q = with_unit_stride(autocast_cast(query));
  const Tensor k = with_unit_stride(autocast_cast(key));
  const Tensor v = with_unit_stride(autocast_cast(value));
  AttentionProblem p = make_problem("attention", q, k, v, options);
  p.out = empty_heads(q);
  kernels::attention(p);
  const Tensor out = p.out, lse = p.lse, mask = p.mask;
  p.q = p.k = p.v = p.out = p.lse = p.mask = {};
  return record("attention", {q, k, v}, out, {q, k, v, out, lse, mask},
                [p](const Backward& b) -> Tensors {
                  b.require_no_graph();
                  AttentionProblem g = p;
                  g.q = b.saved(0), g.k = b.saved(1), g.v = b.saved(2), g.out = b.saved(3),
                  g.lse = b.saved(4), g.mask = b.saved(5);
                  g.dout = with_unit_stride(cast(b.dy(), g.q.dtype()));
                  g.dq = empty_heads(g.q), g.dk = empty_heads(g.k), g.dv = empty_heads(g.v);
                  kernels::attention(g);
                  return {g.dq, g.dk, g.dv};
                });
}

Tensor self_attention(const Tensor& input, int64_t heads, const AttentionOptions& options) {
  raw::check_floating("self_attention", input);
  WEFT_CHECK(input.dim() == 3 && heads > 0 && input.size(2) % (3 * heads) == 0,
             "self_attention: expected [B, T, 3 * heads * D] with {} heads, got {}", heads, input);
  const Tensor qkv = contiguous(autocast_cast(input));
  const int64_t batch = qkv.size(0), tokens = qkv.size(1), width = qkv.size(2) / 3,
                depth = width / heads;
  // Part 0, 1 or 2 of a fused buffer as [B, H, T, D].
  const auto part = [=](const Tensor& fused, int i) {
    const Tensor five = view::reshape(fused, {batch, tokens, 3, heads, depth});
    return view::transpose(view::select(five, 2, i), 1, 2);
  };
  const auto as_heads = [=](const Tensor& x) {
    return view::transpose(view::reshape(x, {batch, tokens, heads, depth}), 1, 2);
  };
  AttentionProblem p =
      make_problem("self_attention", part(qkv, 0), part(qkv, 1), part(qkv, 2), options);
  Tensor out = Tensor::empty({batch, tokens, width}, qkv.dtype(), qkv.device());
  p.out = as_heads(out);
  kernels::attention(p);
  const Tensor lse = p.lse, mask = p.mask;
  p.q = p.k = p.v = p.out = p.lse = p.mask = {};
  return record("self_attention", {qkv}, out, {qkv, out, lse, mask},
                [=](const Backward& b) -> Tensors {
                  b.require_no_graph();
                  AttentionProblem g = p;
                  const Tensor qkv = b.saved(0);
                  g.q = part(qkv, 0), g.k = part(qkv, 1), g.v = part(qkv, 2);
                  g.out = as_heads(b.saved(1)), g.lse = b.saved(2), g.mask = b.saved(3);
                  g.dout = as_heads(raw::contiguous(b.dy(), qkv.dtype()));
                  Tensor dqkv = raw::empty_like(qkv);
                  g.dq = part(dqkv, 0), g.dk = part(dqkv, 1), g.dv = part(dqkv, 2);
                  kernels::attention(g);
                  return {dqkv};
                });
}

}  // namespace weft::ops
