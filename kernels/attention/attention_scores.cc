// Rows of scores are independent; each takes three passes over memory that a core's cache holds.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/attention_scores.cc"
#include "core/simd/targets.h"
// The order matters: foreach_target re-includes this file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <vector>

#include "kernels/attention/attention_rows_inl.h"
#include "kernels/attention/attention_scores.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

/// Calls f(pair in the block, query, row of scores) for every row.
template <class F>
void for_each_row(const AttentionProblem& p, const ScoreBlock& b, F&& f) {
  for (int64_t i = 0; i < b.pairs; ++i) {
    for (int64_t q = 0; q < b.queries; ++q) {
      f(i, b.first_query + q, (i * b.queries + q) * p.k.size(2));
    }
  }
}

void softmax_rows(const AttentionProblem& p, const ScoreBlock& b) {
  const int64_t keys = p.k.size(2);
  const auto scale = static_cast<float>(p.scale);
  float* lse = p.lse.data<float>();
  std::vector<float> factors(p.dropout > 0 ? keys : 0);
  const F32 d;
  for_each_row(p, b, [&](int64_t i, int64_t query, int64_t at) HWY_ATTR {
    float* row = b.scores + at;
    const int64_t n = visible_keys(p, query);
    const float max = max_score(row, n, scale);
    const float sum = exponentials(row, n, scale, max);
    const auto inverse = hn::Set(d, 1 / sum);
    const int64_t pair = b.first_pair + i;
    if (!factors.empty()) dropout_factors(p, pair, query, 0, n, factors.data());
    for_each_vector(d, n, [&](size_t j, size_t m) HWY_ATTR {
      auto v = hn::Mul(load_part(d, row + j, m), inverse);
      if (!factors.empty()) v = hn::Mul(v, load_part(d, factors.data() + j, m));
      store_part(d, v, row + j, m);
    });
    std::fill(row + n, row + keys, 0.0f);
    lse[pair * p.q.size(2) + query] = max + std::log(sum);
  });
}

void gradient_rows(const AttentionProblem& p, const ScoreBlock& b) {
  const int64_t keys = p.k.size(2);
  const float* lse = p.lse.data<float>();
  std::vector<float> factors(p.dropout > 0 ? keys : 0);
  for_each_row(p, b, [&](int64_t i, int64_t query, int64_t at) {
    const int64_t n = visible_keys(p, query);
    const int64_t pair = b.first_pair + i;
    if (!factors.empty()) dropout_factors(p, pair, query, 0, n, factors.data());
    backward_row(b.scores + at, b.gradients + at, n, static_cast<float>(p.scale),
                 lse[pair * p.q.size(2) + query], b.delta[i * p.q.size(2) + query],
                 factors.empty() ? nullptr : factors.data());
    std::fill(b.scores + at + n, b.scores + at + keys, 0.0f);
    std::fill(b.gradients + at + n, b.gradients + at + keys, 0.0f);
  });
}

void delta_rows(const AttentionProblem& p, int64_t first_pair, int64_t n, float* delta) {
  const int64_t width = p.q.size(3);
  std::vector<float> a(width), b(width);
  for (int64_t i = 0; i < n; ++i) {
    const Matrix out = head_matrix(p.out, first_pair + i);
    const Matrix dout = head_matrix(p.dout, first_pair + i);
    for (int64_t q = 0; q < out.rows; ++q) {
      *delta++ = dot_of_rows(out.dtype, out.at(q, 0), dout.at(q, 0), width, a.data(), b.data());
    }
  }
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(softmax_rows);
HWY_EXPORT(gradient_rows);
HWY_EXPORT(delta_rows);

void softmax_scores(const AttentionProblem& p, const ScoreBlock& block) {
  HWY_DYNAMIC_DISPATCH(softmax_rows)(p, block);
}

void score_gradients(const AttentionProblem& p, const ScoreBlock& block) {
  HWY_DYNAMIC_DISPATCH(gradient_rows)(p, block);
}

void output_deltas(const AttentionProblem& p, int64_t first_pair, int64_t n, float* delta) {
  HWY_DYNAMIC_DISPATCH(delta_rows)(p, first_pair, n, delta);
}

}  // namespace weft::kernels
#endif
