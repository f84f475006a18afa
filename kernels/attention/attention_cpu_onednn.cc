// Matrix products by oneDNN with the softmax between them, for rows short enough that the scores of
// a block of queries against all keys fit a core's cache.
//
// A thread takes a group of (batch, head) pairs of fixed size and multiplies all of a group in one
// call; operands that are not dense (views of a fused qkv buffer) are packed first, into the same
// cache. bf16 products take P and dS rounded to bf16, as on a GPU's tensor cores; CPUs without them
// widen to f32. The limiter is the matrix product at 197 tokens and the exponential at 65.
#include "core/parallel.h"
#include "kernels/attention/attention_heads.h"
#include "kernels/gemm/gemm_batch.h"
#include "kernels/gemm/onednn_matmul.h"

namespace weft::kernels {
namespace {

// f32 scores of the pairs of one group: 128 KiB; and of a block of queries of one pair: 512 KiB.
constexpr int64_t kGroupScores = int64_t{1} << 15;
constexpr int64_t kBlockScores = int64_t{1} << 17;

/// The heads of a problem's tensors.
struct Heads {
  MatrixBatch q, k, v, out, dout, dq, dk, dv;
};

/// The scores as the next product's operand: rounded to bf16 for bf16 products.
const void* as_operand(const float* scores, int64_t n, DType dtype, const Tensor& rounded) {
  if (dtype == DType::f32) return scores;
  copy_matrix(dense_matrix(DType::f32, const_cast<float*>(scores), 1, n),
              dense_matrix(dtype, rounded.raw(), 1, n));
  return rounded.raw();
}

/// Sizes of a group's work, and the products in it.
struct Group {
  int64_t pairs, queries, keys, width;
  DType input;

  DenseMatrices dense(const MatrixBatch& m, int64_t first_pair) const {
    return dense_matrices(m, first_pair, pairs, input);
  }
  /// [queries, keys] = A B^T of [., width] operands.
  void scores(int64_t rows, const void* a, const void* b, void* c) const {
    onednn_matmul(
        {.input = input, .batch = pairs, .m = rows, .n = keys, .k = width, .b_transposed = true}, a,
        b, c);
  }
  /// [rows, width] = P B.
  void from_rows(int64_t rows, const void* p, const void* b, void* c) const {
    onednn_matmul({.input = input, .batch = pairs, .m = rows, .n = width, .k = keys}, p, b, c);
  }
  /// [keys, width] = P^T B (+ C).
  void from_columns(int64_t rows, const void* p, const void* b, void* c, bool sum) const {
    onednn_matmul({.input = input,
                   .batch = pairs,
                   .m = keys,
                   .n = width,
                   .k = rows,
                   .a_transposed = true,
                   .sum = sum},
                  p, b, c);
  }
};

int64_t queries_per_block(const Group& g) {
  return std::min(g.queries, std::max<int64_t>(16, kBlockScores / g.keys));
}

void forward(const AttentionProblem& p, const Heads& heads, const Group& g, int64_t pair) {
  const int64_t block = queries_per_block(g);
  const DenseMatrices q = g.dense(heads.q, pair), k = g.dense(heads.k, pair),
                      v = g.dense(heads.v, pair);
  const DenseResults out(heads.out, pair, g.pairs, DType::f32);
  const Tensor scores = Tensor::empty({g.pairs * block * g.keys}, DType::f32);
  const Tensor rounded = Tensor::empty({g.input == DType::f32 ? 0 : scores.numel()}, g.input);
  for (int64_t first = 0; first < g.queries; first += block) {
    const int64_t rows = std::min(block, g.queries - first);
    g.scores(rows, q.first.at(first, 0), k.first.data, scores.data<float>());
    finish_scores(p, {pair, g.pairs, first, rows, scores.data<float>(), nullptr});
    const void* weights =
        as_operand(scores.data<float>(), g.pairs * rows * g.keys, g.input, rounded);
    g.from_rows(rows, weights, v.first.data, out.first().at(first, 0));
  }
  out.store();
}

void backward(const AttentionProblem& p, const Heads& heads, const Group& g, int64_t pair) {
  const int64_t block = queries_per_block(g);
  const DenseMatrices q = g.dense(heads.q, pair), k = g.dense(heads.k, pair),
                      v = g.dense(heads.v, pair);
  const DenseMatrices dout = g.dense(heads.dout, pair);
  const DenseResults dq(heads.dq, pair, g.pairs, DType::f32);
  const DenseResults dk(heads.dk, pair, g.pairs, DType::f32);
  const DenseResults dv(heads.dv, pair, g.pairs, DType::f32);
  const Tensor scores = Tensor::empty({g.pairs * block * g.keys}, DType::f32);
  const Tensor gradients = Tensor::empty(scores.shape(), DType::f32);
  const Tensor rounded = Tensor::empty({g.input == DType::f32 ? 0 : scores.numel()}, g.input);
  for (int64_t first = 0; first < g.queries; first += block) {
    const int64_t rows = std::min(block, g.queries - first);
    const int64_t n = g.pairs * rows * g.keys;
    g.scores(rows, q.first.at(first, 0), k.first.data, scores.data<float>());
    g.scores(rows, dout.first.at(first, 0), v.first.data, gradients.data<float>());
    finish_scores(p, {pair, g.pairs, first, rows, scores.data<float>(), gradients.data<float>()});
    const void* weights = as_operand(scores.data<float>(), n, g.input, rounded);
    g.from_columns(rows, weights, dout.first.at(first, 0), dv.first().data, first > 0);
    const void* ds = as_operand(gradients.data<float>(), n, g.input, rounded);
    g.from_columns(rows, ds, q.first.at(first, 0), dk.first().data, first > 0);
    g.from_rows(rows, ds, k.first.data, dq.first().at(first, 0));
  }
  for (const DenseResults* results : {&dq, &dk, &dv}) results->store();
}

}  // namespace

void attention_cpu_onednn(const AttentionProblem& p) {
  check_attention(p);
  const DType input = onednn_input(p.dtype());
  const int64_t queries = p.q.size(2), keys = p.k.size(2);
  // More than one pair only where all queries fit one block: the pairs' rows are then adjacent.
  const int64_t group = std::max<int64_t>(1, kGroupScores / (queries * keys));
  const Heads heads{p.q, p.k, p.v, p.out, p.dout, p.dq, p.dk, p.dv};
  parallel_for(attention_pairs(p), group, [&](int64_t begin, int64_t end) {
    const Group g{end - begin, queries, keys, p.q.size(3), input};
    p.backward() ? backward(p, heads, g, begin) : forward(p, heads, g, begin);
  });
}

}  // namespace weft::kernels
