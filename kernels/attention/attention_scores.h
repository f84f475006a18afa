// What the variants of attention that store their scores do between the matrix products: f32 scores
// in, P or dS out, in place. Each function works in the calling thread.
#pragma once

#include "kernels/attention/attention_heads.h"

namespace weft::kernels {

/// Scores of `queries` queries from `first_query` on, for `pairs` pairs from `first_pair` on.
struct ScoreBlock {
  int64_t first_pair, pairs, first_query, queries;
  float* scores;       // [pairs, queries, Tk]: Q K^T; becomes dropout(P)
  float* gradients;    // backward: dropout(P)'s gradient, dout V^T; becomes dS
  const float* delta;  // backward: D of every query of the group's pairs, [pairs, Tq]
};

/// Forward: P from Q K^T; writes lse.
void softmax_scores(const AttentionProblem& p, const ScoreBlock& block);
/// Backward: P and dS from Q K^T, dout V^T and lse.
void score_gradients(const AttentionProblem& p, const ScoreBlock& block);
/// D = sum(dout * out) of every query of n pairs.
void output_deltas(const AttentionProblem& p, int64_t first_pair, int64_t n, float* delta);

}  // namespace weft::kernels
