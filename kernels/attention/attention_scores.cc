// Rows of scores are independent; each takes three passes over memory that a core's cache holds.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/attention_scores.cc"
#include "core/simd/targets_inl.h"

#include <vector>

#include "kernels/attention/attention_rows_inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

void forward_row(const AttentionProblem& p, float* row, int64_t n, const float* factors,
                 float* lse) {
  const F32 d;
  const auto scale = static_cast<float>(p.scale);
  const float max = max_score(row, n, scale);
  const float sum = exponentials(row, n, scale, max);
  const auto inverse = hn::Set(d, 1 / sum);
  for_each_vector(d, n, [&](size_t j, size_t m) HWY_ATTR {
    auto v = hn::Mul(load_part(d, row + j, m), inverse);
    if (factors) v = hn::Mul(v, load_part(d, factors + j, m));
    store_part(d, v, row + j, m);
  });
  *lse = max + std::log(sum);
}

void finish_rows(const AttentionProblem& p, const StoredScores& b) {
  const int64_t keys = p.k.size(2), width = p.q.size(3);
  std::vector<float> factors(p.dropout > 0 ? keys : 0), row_a(width), row_b(width);
  const float* const dropout = factors.empty() ? nullptr : factors.data();
  for (int64_t i = 0; i < b.pairs * b.queries; ++i) {
    const int64_t pair = b.first_pair + i / b.queries, query = b.first_query + i % b.queries;
    float* const row = b.scores + i * keys;
    const int64_t visible = visible_keys(p, query);
    const bool sees_any =
        mask_scores({p, pair, query}, 0, visible, static_cast<float>(p.scale), row);
    const int64_t n = sees_any ? visible : 0;
    float* const lse = p.lse.data<float>() + pair * p.q.size(2) + query;
    if (dropout) dropout_factors(p, pair, query, 0, n, factors.data());
    if (p.backward()) {
      float* const dp = b.gradients + i * keys;
      const float delta =
          dot_of_rows(p.dtype(), head_matrix(p.out, pair).at(query, 0),
                      head_matrix(p.dout, pair).at(query, 0), width, row_a.data(), row_b.data());
      backward_row(row, dp, n, static_cast<float>(p.scale), *lse, delta, dropout);
      std::fill(dp + n, dp + keys, 0.0f);
    } else {
      forward_row(p, row, n, dropout, lse);
    }
    std::fill(row + n, row + keys, 0.0f);
  }
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(finish_rows);

void finish_scores(const AttentionProblem& p, const StoredScores& block) {
  HWY_DYNAMIC_DISPATCH(finish_rows)(p, block);
}

}  // namespace weft::kernels
#endif
