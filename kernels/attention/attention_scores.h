// What the variants of attention that store their scores do between the matrix products.
#pragma once

#include "kernels/attention/attention_heads.h"

namespace weft::kernels {

/// Scores of `queries` queries from `first_query` on, for `pairs` pairs from `first_pair` on.
struct ScoreBlock {
  int64_t first_pair, pairs, first_query, queries;
  float* scores;     // [pairs, queries, Tk]: Q K^T; becomes dropout(P)
  float* gradients;  // backward: dropout(P)'s gradient, dout V^T; becomes dS
};

/// Forward: P from Q K^T; writes lse. Backward: P and dS from Q K^T, dout V^T and lse. Works in the
/// calling thread.
void finish_scores(const AttentionProblem& p, const ScoreBlock& block);

}  // namespace weft::kernels
