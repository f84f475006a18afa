// Attention whose products are gemm's, so that they have the numerics asked for: exact, TF32, or a
// GPU's. As there, P and dS are rounded to the operands' dtype before they are multiplied.
//
// A thread owns a (batch, head) pair, in backward one of k and v with the heads of q that share it,
// and holds the whole score matrix of a head, two in backward. The limiter is the matrix product.
#include "core/parallel.h"
#include "core/view.h"
#include "kernels/attention/attention_heads.h"
#include "kernels/gemm/gemm.h"

namespace weft::kernels {
namespace {

/// Pair b * H + h of a [B, H, T, D] tensor, [T, D].
Tensor head(const Tensor& t, int64_t pair) {
  return view::select(view::select(t, 0, pair / t.size(1)), 0, pair % t.size(1));
}

Tensor transposed(const Tensor& t) { return view::transpose(t, 0, 1); }

/// f32 scores as the next product's operand.
Tensor as_operand(const Tensor& scores, DType dtype) {
  if (dtype == DType::f32) return scores;
  const Tensor rounded = Tensor::empty(scores.shape(), dtype);
  copy_matrix(dense_matrix(DType::f32, scores.raw(), scores.size(0), scores.size(1)),
              dense_matrix(dtype, rounded.raw(), scores.size(0), scores.size(1)));
  return rounded;
}

void forward(const AttentionProblem& p, int64_t pair) {
  const int64_t key_pair = pair / heads_per_key(p);
  const Tensor q = head(p.q, pair), k = head(p.k, key_pair);
  const Tensor scores = Tensor::empty({q.size(0), k.size(0)}, DType::f32);
  gemm({.a = q, .b = transposed(k), .c = scores, .numerics = p.numerics});
  finish_scores(p, {pair, 1, 0, q.size(0), scores.data<float>(), nullptr});
  gemm({.a = as_operand(scores, p.dtype()),
        .b = head(p.v, key_pair),
        .c = head(p.out, pair),
        .numerics = p.numerics});
}

/// Of a head of k and v, and the heads of q that share it, whose gradients add up in their order.
void backward(const AttentionProblem& p, int64_t key_pair) {
  const int64_t sharing = heads_per_key(p);
  const Tensor k = head(p.k, key_pair), v = head(p.v, key_pair);
  const Tensor dk = head(p.dk, key_pair), dv = head(p.dv, key_pair);
  // Sums of several heads are rounded once.
  const bool is_narrow = sharing > 1 && p.dtype() != DType::f32;
  const Tensor sum_dk = is_narrow ? Tensor::empty(dk.shape(), DType::f32) : dk;
  const Tensor sum_dv = is_narrow ? Tensor::empty(dv.shape(), DType::f32) : dv;
  for (int64_t i = 0; i < sharing; ++i) {
    const int64_t pair = key_pair * sharing + i;
    const Tensor q = head(p.q, pair), dout = head(p.dout, pair);
    const Tensor scores = Tensor::empty({q.size(0), k.size(0)}, DType::f32);
    const Tensor gradients = Tensor::empty(scores.shape(), DType::f32);
    gemm({.a = q, .b = transposed(k), .c = scores, .numerics = p.numerics});
    gemm({.a = dout, .b = transposed(v), .c = gradients, .numerics = p.numerics});
    finish_scores(p, {pair, 1, 0, q.size(0), scores.data<float>(), gradients.data<float>()});
    const Tensor weights = as_operand(scores, p.dtype()), ds = as_operand(gradients, p.dtype());
    gemm({.a = transposed(weights),
          .b = dout,
          .c = sum_dv,
          .accumulate = i > 0,
          .numerics = p.numerics});
    gemm({.a = transposed(ds), .b = q, .c = sum_dk, .accumulate = i > 0, .numerics = p.numerics});
    gemm({.a = ds, .b = k, .c = head(p.dq, pair), .numerics = p.numerics});
  }
  if (!is_narrow) return;
  const auto store = [&](const Tensor& sum, const Tensor& all) {
    copy_matrix(dense_matrix(DType::f32, sum.raw(), sum.size(0), sum.size(1)),
                head_matrix(all, key_pair));
  };
  store(sum_dk, p.dk);
  store(sum_dv, p.dv);
}

}  // namespace

void attention_cpu_gemm(const AttentionProblem& p) {
  check_attention(p);
  const int64_t tasks = p.backward() ? p.k.size(0) * p.k.size(1) : attention_pairs(p);
  parallel_for(tasks, 1,
               [&](int64_t task, int64_t) { p.backward() ? backward(p, task) : forward(p, task); });
}

}  // namespace weft::kernels
