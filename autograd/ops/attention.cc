#include "kernels/attention/attention.h"

#include <cmath>

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "autograd/raw.h"
#include "core/view.h"
#include "kernels/dropout/dropout.h"

namespace weft::ops {
namespace {

using kernels::AttentionProblem;

/// An added mask as kernels can take it whose lse is in f32: where numbers such as -1e9 hide all
/// keys from a query, lse would lose log sum exp beside them, and with it P of backward. A row
/// whose largest number is below -16384 has it subtracted, which changes no softmax; below -2^27,
/// where a score is lost beside it, keys that have it are alike (kernels::kLeastAdded), and are all
/// that is seen. To find such rows a GPU would have to be waited for: there, as in PyTorch, they
/// are left.
Tensor raised(const Tensor& mask, bool causal, int64_t queries, int64_t keys) {
  const Device device = mask.device();
  if (mask.dtype() != DType::f32 || device.type != DeviceType::cpu || mask.numel() == 0)
    return mask;
  const NoGrad guard;
  const auto number = [&](double value) { return full({}, value, DType::f32, device); };
  const Tensor least = number(-HUGE_VAL);
  Tensor seen = mask;
  if (causal) seen = where(tril(full({queries, keys}, 1, DType::boolean, device)), mask, least);
  const Tensor top = seen.dim() == 0 ? seen : max(seen, {-1}, true);
  const Tensor is_low = logical_and(lt(top, number(-16384)), gt(top, least));
  if (any(is_low).item() == 0) return mask;
  const Tensor alike = where(eq(seen, top), number(kernels::kLeastAdded), least);
  return where(is_low, where(le(top, number(-0x1p27)), alike, sub(seen, top)), seen);
}

/// The problem of a forward pass, with its random stream reserved.
AttentionProblem make_problem(std::string_view op, const Tensor& q, const Tensor& k,
                              const Tensor& v, const AttentionOptions& options) {
  WEFT_CHECK(options.dropout >= 0 && options.dropout < 1, "{}: dropout must lie in [0, 1), got {}",
             op, options.dropout);
  AttentionProblem p{.q = q, .k = k, .v = v};
  p.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(3))));
  p.causal = options.causal;
  p.dropout = options.dropout;
  const DType statistics = q.dtype() == DType::f64 ? DType::f64 : DType::f32;
  if (options.mask.defined()) {
    const Tensor& mask = options.mask;
    const Shape scores = {q.size(0), q.size(1), q.size(2), k.size(2)};
    raw::check_operands(op, {q, mask});
    WEFT_CHECK((mask.dtype() == DType::boolean || is_floating(mask.dtype())) &&
                   broadcast_shapes(mask.shape(), scores, op) == scores,
               "{}: expected a bool or floating mask that broadcasts to {}, got {}", op, scores,
               mask);
    WEFT_CHECK(p.scale != 0, "{}: expected a scale other than 0 beside a mask", op);
    const bool is_added = mask.dtype() != DType::boolean;
    const Tensor added = is_added ? cast(detach(mask), statistics) : mask;
    p.mask = view::expand(raised(added, p.causal, scores[2], scores[3]), scores);
  }
  if (p.dropout > 0) {
    // Each call has a stream of its own: the kernel counts score elements from 0 in it. The
    // generator's stream goes into the seed, where all of its bits count.
    p.moved = moved_since_capture(q.device());
    Generator& g = generator();
    constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;  // so that no two streams have one product
    p.seed = g.seed ^ (g.stream * kOdd);
    p.stream = (uint64_t{1} << 63) | g.take(4);
  }
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

/// softmax(scale Q K^T + mask) in recorded ops, in f32 or wider, with 0 in rows of hidden keys; k
/// has a head for each of q's.
Tensor composed_probabilities(const Tensor& q, const Tensor& k, const Tensor& mask,
                              const AttentionProblem& p) {
  const DType dtype = q.dtype() == DType::f64 ? DType::f64 : DType::f32;
  Tensor scores = matmul(cast(q, dtype), transpose(cast(k, dtype), 2, 3)) * p.scale;
  Tensor shown;
  if (p.causal) shown = tril(full({q.size(2), k.size(2)}, 1, DType::boolean, q.device()));
  if (mask.defined() && mask.dtype() == DType::boolean) {
    shown = shown.defined() ? logical_and(shown, mask) : mask;
  } else if (mask.defined()) {
    scores = add(scores, cast(mask, dtype));
  }
  if (shown.defined()) scores = masked_fill(scores, logical_not(shown), -HUGE_VAL);
  if (!mask.defined()) return softmax(scores, -1);
  // Of a query that sees no key, where there is a largest one, the softmax would be NaN.
  if (k.size(2) == 0) return scores;
  const Tensor is_blind =
      eq(max(detach(scores), {-1}, true), full({}, -HUGE_VAL, dtype, q.device()));
  return masked_fill(softmax(masked_fill(scores, is_blind, 0), -1), is_blind, 0);
}

/// Dropout of the weights, by the numbers that the kernels draw.
Tensor dropped(const Tensor& weights, const kernels::DropoutProblem& noise) {
  if (noise.p == 0) return weights;
  kernels::DropoutProblem problem = noise;
  problem.x = weights;
  problem.y = raw::empty_like(weights);
  kernels::dropout(problem);
  return record("attention", {weights}, problem.y, {},
                [noise](const Backward& b) -> Tensors { return {dropped(b.dy(), noise)}; });
}
kernels::DropoutProblem noise_of(const AttentionProblem& p) {
  WEFT_CHECK(p.dropout == 0 || !p.moved.defined(),
             "attention: gradients of gradients and of a mask have no dropout in a captured step");
  return {.p = p.dropout, .seed = p.seed, .stream = p.stream, .offset = p.offset};
}

/// Each head of k or v as often as heads of q share it.
Tensor for_each_head(const Tensor& x, int64_t heads) {
  if (x.size(1) == heads) return x;
  const Shape& s = x.shape();
  const Tensor shared = expand(unsqueeze(x, 2), {s[0], s[1], heads / s[1], s[2], s[3]});
  return reshape(shared, {s[0], heads, s[2], s[3]});
}

/// The gradients of for_each_head.
Tensor sum_of_heads(const Tensor& dx, int64_t heads) {
  if (dx.size(1) == heads) return dx;
  const Shape& s = dx.shape();
  return sum(reshape(dx, {s[0], heads, s[1] / heads, s[2], s[3]}), {2});
}

/// The gradients of attention in recorded ops, by the equations of kernels/attention/attention.h.
Tensors composed_gradients(const Tensor& q, const Tensor& key, const Tensor& value,
                           const AttentionProblem& p, const Tensor& dy) {
  const Tensor k = for_each_head(key, q.size(1)), v = for_each_head(value, q.size(1));
  const Tensor weights = composed_probabilities(q, k, p.mask, p);
  const DType dtype = weights.dtype();
  const kernels::DropoutProblem noise = noise_of(p);
  const Tensor dout = cast(dy, dtype),
               dweights = dropped(matmul(dout, transpose(cast(v, dtype), 2, 3)), noise);
  const Tensor slope = sub(dweights, sum(mul(dweights, weights), {-1}, true));
  const Tensor ds = mul(weights, slope) * p.scale;
  const auto sums = [&](const Tensor& rows, const Tensor& x) {
    const Tensor dx = matmul(transpose(rows, 2, 3), cast(x, dtype));
    return cast(sum_of_heads(dx, key.size(1)), key.dtype());
  };
  return {cast(matmul(ds, cast(k, dtype)), q.dtype()), sums(ds, q),
          sums(dropped(weights, noise), dout)};
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
  WEFT_CHECK(q.dtype() == k.dtype() && k.dtype() == v.dtype(),
             "attention: expected q, k and v of one dtype, got {}, {} and {}", q, k, v);
  AttentionProblem p = make_problem("attention", q, k, v, options);
  if (options.mask.defined() && is_recording({options.mask})) {
    // The kernels have no gradient of the mask.
    const Tensor weights = composed_probabilities(q, for_each_head(k, heads), options.mask, p);
    const Tensor kept = dropped(weights, noise_of(p));
    return cast(matmul(kept, cast(for_each_head(v, heads), kept.dtype())), q.dtype());
  }
  p.out = empty_heads(q);
  kernels::attention(p);
  const Tensor out = p.out, lse = p.lse, mask = p.mask;
  p.q = p.k = p.v = p.out = p.lse = p.mask = {};
  return record("attention", {q, k, v}, out, {q, k, v, out, lse, mask},
                [p](const Backward& b) -> Tensors {
                  AttentionProblem g = p;
                  g.mask = b.saved(5);
                  if (b.create_graph()) {
                    return composed_gradients(b.saved(0), b.saved(1), b.saved(2), g, b.dy());
                  }
                  g.q = b.saved(0), g.k = b.saved(1), g.v = b.saved(2), g.out = b.saved(3),
                  g.lse = b.saved(4);
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
  if (options.mask.defined() && is_recording({options.mask})) {
    const Tensor parts = permute(reshape(qkv, {batch, tokens, 3, heads, depth}), {2, 0, 3, 1, 4});
    const Tensor out =
        attention(select(parts, 0, 0), select(parts, 0, 1), select(parts, 0, 2), options);
    return reshape(transpose(out, 1, 2), {batch, tokens, width});
  }
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
