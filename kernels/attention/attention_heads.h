// The (batch, head) pairs of an attention problem as matrices in memory, and their stored scores.
#pragma once

#include "kernels/attention/attention.h"
#include "kernels/gemm/matrix.h"

namespace weft::kernels {

inline int64_t attention_pairs(const AttentionProblem& p) { return p.q.size(0) * p.q.size(1); }

/// Neighbouring heads of q that share a head of k and v. With pair / n the pair of k and v follows
/// from that of q.
inline int64_t heads_per_key(const AttentionProblem& p) {
  return p.q.size(1) / std::max<int64_t>(p.k.size(1), 1);
}

/// Pair b * H + h of a [B, H, T, D] tensor: its [T, D] matrix.
inline Matrix head_matrix(const Tensor& t, int64_t pair) {
  const int64_t heads = t.size(1);
  const Matrix first = {t.dtype(), t.raw(), t.size(2), t.size(3), t.stride(2), t.stride(3)};
  return first.shifted(pair / heads * t.stride(0) + pair % heads * t.stride(1));
}

/// Every row of a [B, H, T, D] tensor begins at a multiple of 16 bytes.
inline bool has_aligned_rows(const Tensor& t) {
  if (!t.defined() || t.numel() == 0) return true;
  bool is_aligned = reinterpret_cast<uintptr_t>(t.raw()) % 16 == 0;
  const auto elements = static_cast<int64_t>(16 / t.itemsize());
  for (int d = 0; d < 3; ++d) {
    is_aligned = is_aligned && (t.size(d) == 1 || t.stride(d) % elements == 0);
  }
  return is_aligned;
}

/// TMA addresses the tensor: such rows, and no dimension that repeats others' memory.
inline bool has_tma_rows(const Tensor& t) {
  const int64_t kMostElements = (int64_t{1} << 40) / static_cast<int64_t>(t.itemsize());
  bool takes = has_aligned_rows(t) && t.numel() > 0;
  for (int d = 0; d < 3; ++d) {
    takes = takes && (t.size(d) == 1 || (t.stride(d) > 0 && t.stride(d) < kMostElements));
  }
  return takes;
}

/// Keys that query i sees.
inline int64_t visible_keys(const AttentionProblem& p, int64_t i) {
  const int64_t keys = p.k.size(2);
  return p.causal ? std::min(keys, i + 1) : keys;
}

/// A query's row of the mask: whether it sees a key, or what is added to the score.
struct MaskRow {
  Matrix row = {};  // [1, Tk], or nothing

  MaskRow(const AttentionProblem& p, int64_t pair, int64_t query) {
    if (p.mask.defined()) row = head_matrix(p.mask, pair).block(query, 1, 0, p.k.size(2));
  }
  bool exists() const { return row.data != nullptr; }
  bool is_additive() const { return exists() && row.dtype != DType::boolean; }
  template <class T>
  T at(int64_t key) const {
    return *static_cast<const T*>(row.at(0, key));
  }
};

inline void check_attention(const AttentionProblem& p) {
  WEFT_ASSERT(p.q.dim() == 4 && p.k.dim() == 4 && p.v.shape() == p.k.shape());
  WEFT_ASSERT(p.out.shape() == p.q.shape() && p.q.size(3) == p.k.size(3));
  WEFT_ASSERT(p.q.size(0) == p.k.size(0) && p.q.size(1) == p.k.size(1) * heads_per_key(p));
  WEFT_ASSERT(!p.mask.defined() || p.mask.dtype() == DType::boolean ||
              p.mask.dtype() == p.lse.dtype());
  WEFT_ASSERT(!p.mask.defined() || p.scale != 0);
  WEFT_ASSERT(p.lse.is_contiguous() && p.lse.numel() == attention_pairs(p) * p.q.size(2));
  WEFT_ASSERT(p.lse.dtype() == (p.dtype() == DType::f64 ? DType::f64 : DType::f32));
  WEFT_ASSERT(p.dropout >= 0 && p.dropout < 1);
}

/// Scores of `queries` queries from `first_query` on, for `pairs` pairs from `first_pair` on.
struct StoredScores {
  int64_t first_pair, pairs, first_query, queries;
  float* scores;     // [pairs, queries, Tk]: Q K^T; becomes dropout(P)
  float* gradients;  // backward: dropout(P)'s gradient, dout V^T; becomes dS
};

/// Between the matrix products, in the calling thread. Forward: P from Q K^T; writes lse. Backward:
/// P and dS from Q K^T, dout V^T and lse.
void finish_scores(const AttentionProblem& p, const StoredScores& block);

}  // namespace weft::kernels
