// Matrix products by oneDNN with the softmax between them, for rows short enough that the scores of
// a block of queries against all keys fit a core's cache.
//
// A thread takes a group of (batch, head) pairs of fixed size and multiplies all of a group in one
// call; operands that are not dense (views of a fused qkv buffer) are packed first, into the same
// cache. bf16 products take P and dS rounded to bf16, as on a GPU's tensor cores; CPUs without them
// widen to f32. The limiter is the matrix product at 197 tokens and the exponential at 65.
#include <vector>

#include "core/parallel.h"
#include "kernels/attention/attention_scores.h"
#include "kernels/gemm/onednn_matmul.h"

namespace weft::kernels {
namespace {

// f32 scores of the pairs of one group: 128 KiB; and of a block of queries of one pair: 512 KiB.
constexpr int64_t kGroupScores = int64_t{1} << 15;
constexpr int64_t kBlockScores = int64_t{1} << 17;

/// Dense [T, D] matrices of n pairs, one after another.
struct Heads {
  const void* data = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0, cols = 0;
  Tensor storage = {};

  /// The rows from `row` on, of the first pair.
  const void* from(int64_t row) const {
    return static_cast<const char*>(data) + row * cols * static_cast<int64_t>(itemsize(dtype));
  }
};

bool are_dense(const Tensor& t, int64_t pair, int64_t n) {
  const auto size = t.size(2) * t.size(3) * static_cast<int64_t>(t.itemsize());
  const Matrix first = head_matrix(t, pair);
  if (!first.is_dense()) return false;
  for (int64_t i = 1; i < n; ++i) {
    if (static_cast<char*>(head_matrix(t, pair + i).data) !=
        static_cast<char*>(first.data) + i * size) {
      return false;
    }
  }
  return true;
}

Heads pack_heads(const Tensor& t, int64_t pair, int64_t n, DType dtype) {
  Heads heads{head_matrix(t, pair).data, dtype, t.size(2), t.size(3)};
  if (t.dtype() == dtype && are_dense(t, pair, n)) return heads;
  heads.storage = Tensor::empty({n, heads.rows, heads.cols}, dtype);
  heads.data = heads.storage.raw();
  const Matrix to = dense_matrix(dtype, heads.storage.raw(), heads.rows, heads.cols);
  for (int64_t i = 0; i < n; ++i) {
    copy_matrix(head_matrix(t, pair + i), to.shifted(i * heads.rows * heads.cols));
  }
  return heads;
}

/// Where products for the heads of an output go: the output itself, or f32 scratch that store()
/// then rounds and scatters.
class OutputHeads {
 public:
  OutputHeads(const Tensor& t, int64_t pair, int64_t n) : tensor_(t), pair_(pair), n_(n) {
    is_direct_ = t.dtype() == DType::f32 && are_dense(t, pair, n);
    if (!is_direct_) scratch_ = Tensor::empty({n, t.size(2), t.size(3)}, DType::f32);
  }
  float* data() const {
    return is_direct_ ? static_cast<float*>(head_matrix(tensor_, pair_).data)
                      : scratch_.data<float>();
  }
  void store() const {
    for (int64_t i = 0; !is_direct_ && i < n_; ++i) {
      const Matrix to = head_matrix(tensor_, pair_ + i);
      copy_matrix(
          dense_matrix(DType::f32, scratch_.raw(), to.rows, to.cols).shifted(i * to.rows * to.cols),
          to);
    }
  }

 private:
  const Tensor& tensor_;
  int64_t pair_, n_;
  bool is_direct_;
  Tensor scratch_;
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

  /// [queries, keys] = A B^T of [., width] operands.
  void scores(int64_t rows, const void* a, const void* b, float* c) const {
    onednn_matmul(
        {.input = input, .batch = pairs, .m = rows, .n = keys, .k = width, .b_transposed = true}, a,
        b, c);
  }
  /// [rows, width] = P B.
  void from_rows(int64_t rows, const void* p, const void* b, float* c) const {
    onednn_matmul({.input = input, .batch = pairs, .m = rows, .n = width, .k = keys}, p, b, c);
  }
  /// [keys, width] = P^T B (+ C).
  void from_columns(int64_t rows, const void* p, const void* b, float* c, bool sum) const {
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

void forward(const AttentionProblem& p, const Group& g, int64_t pair) {
  const int64_t block = queries_per_block(g);
  const Heads q = pack_heads(p.q, pair, g.pairs, g.input);
  const Heads k = pack_heads(p.k, pair, g.pairs, g.input);
  const Heads v = pack_heads(p.v, pair, g.pairs, g.input);
  const OutputHeads out(p.out, pair, g.pairs);
  const Tensor scores = Tensor::empty({g.pairs * block * g.keys}, DType::f32);
  const Tensor rounded = Tensor::empty({g.input == DType::f32 ? 0 : scores.numel()}, g.input);
  for (int64_t first = 0; first < g.queries; first += block) {
    const int64_t rows = std::min(block, g.queries - first);
    g.scores(rows, q.from(first), k.data, scores.data<float>());
    softmax_scores(p, {pair, g.pairs, first, rows, scores.data<float>(), nullptr, nullptr});
    const void* weights =
        as_operand(scores.data<float>(), g.pairs * rows * g.keys, g.input, rounded);
    g.from_rows(rows, weights, v.data, out.data() + first * g.width);
  }
  out.store();
}

void backward(const AttentionProblem& p, const Group& g, int64_t pair) {
  const int64_t block = queries_per_block(g);
  const Heads q = pack_heads(p.q, pair, g.pairs, g.input);
  const Heads k = pack_heads(p.k, pair, g.pairs, g.input);
  const Heads v = pack_heads(p.v, pair, g.pairs, g.input);
  const Heads dout = pack_heads(p.dout, pair, g.pairs, g.input);
  const OutputHeads dq(p.dq, pair, g.pairs), dk(p.dk, pair, g.pairs), dv(p.dv, pair, g.pairs);
  const Tensor delta = Tensor::empty({g.pairs, g.queries}, DType::f32);
  output_deltas(p, pair, g.pairs, delta.data<float>());
  const Tensor scores = Tensor::empty({g.pairs * block * g.keys}, DType::f32);
  const Tensor gradients = Tensor::empty(scores.shape(), DType::f32);
  const Tensor rounded = Tensor::empty({g.input == DType::f32 ? 0 : scores.numel()}, g.input);
  for (int64_t first = 0; first < g.queries; first += block) {
    const int64_t rows = std::min(block, g.queries - first);
    const int64_t n = g.pairs * rows * g.keys;
    g.scores(rows, q.from(first), k.data, scores.data<float>());
    g.scores(rows, dout.from(first), v.data, gradients.data<float>());
    score_gradients(p, {pair, g.pairs, first, rows, scores.data<float>(), gradients.data<float>(),
                        delta.data<float>()});
    const void* weights = as_operand(scores.data<float>(), n, g.input, rounded);
    g.from_columns(rows, weights, dout.from(first), dv.data(), first > 0);
    const void* ds = as_operand(gradients.data<float>(), n, g.input, rounded);
    g.from_columns(rows, ds, q.from(first), dk.data(), first > 0);
    g.from_rows(rows, ds, k.data, dq.data() + first * g.width);
  }
  dq.store();
  dk.store();
  dv.store();
}

}  // namespace

void attention_cpu_onednn(const AttentionProblem& p) {
  check_attention(p);
  const DType input = p.dtype() == DType::bf16 && onednn_has_bf16() ? DType::bf16 : DType::f32;
  const int64_t queries = p.q.size(2), keys = p.k.size(2);
  // More than one pair only where all queries fit one block: the pairs' rows are then adjacent.
  const int64_t group = std::max<int64_t>(1, kGroupScores / (queries * keys));
  parallel_for(attention_pairs(p), group, [&](int64_t begin, int64_t end) {
    const Group g{end - begin, queries, keys, p.q.size(3), input};
    p.backward() ? backward(p, g, begin) : forward(p, g, begin);
  });
}

}  // namespace weft::kernels
