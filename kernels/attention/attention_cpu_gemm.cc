// Attention whose products are gemm's, so that they have the numerics asked for: exact, TF32, or a
// GPU's. As there, P and dS are rounded to the operands' dtype before they are multiplied.
//
// A thread owns a (batch, head) pair and holds its whole score matrix, two in backward. The limiter
// is the matrix product.
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
  const Tensor q = head(p.q, pair), k = head(p.k, pair);
  const Tensor scores = Tensor::empty({q.size(0), k.size(0)}, DType::f32);
  gemm({.a = q, .b = transposed(k), .c = scores, .numerics = p.numerics});
  finish_scores(p, {pair, 1, 0, q.size(0), scores.data<float>(), nullptr});
  gemm({.a = as_operand(scores, p.dtype()),
        .b = head(p.v, pair),
        .c = head(p.out, pair),
        .numerics = p.numerics});
}

void backward(const AttentionProblem& p, int64_t pair) {
  const Tensor q = head(p.q, pair), k = head(p.k, pair), dout = head(p.dout, pair);
  const Tensor scores = Tensor::empty({q.size(0), k.size(0)}, DType::f32);
  const Tensor gradients = Tensor::empty(scores.shape(), DType::f32);
  gemm({.a = q, .b = transposed(k), .c = scores, .numerics = p.numerics});
  gemm({.a = dout, .b = transposed(head(p.v, pair)), .c = gradients, .numerics = p.numerics});
  finish_scores(p, {pair, 1, 0, q.size(0), scores.data<float>(), gradients.data<float>()});
  const Tensor weights = as_operand(scores, p.dtype()), ds = as_operand(gradients, p.dtype());
  gemm({.a = transposed(weights), .b = dout, .c = head(p.dv, pair), .numerics = p.numerics});
  gemm({.a = transposed(ds), .b = q, .c = head(p.dk, pair), .numerics = p.numerics});
  gemm({.a = ds, .b = k, .c = head(p.dq, pair), .numerics = p.numerics});
}

}  // namespace

void attention_cpu_gemm(const AttentionProblem& p) {
  check_attention(p);
  parallel_for(attention_pairs(p), 1,
               [&](int64_t pair, int64_t) { p.backward() ? backward(p, pair) : forward(p, pair); });
}

}  // namespace weft::kernels
