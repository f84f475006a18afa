// Rows of attention scores, shared by the CPU variants. Included once per Highway target, as
// kernels/simd/convert_inl.h is.

// Per-target include guard, as Highway's own -inl headers have.
#if defined(WEFT_KERNELS_ATTENTION_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_ATTENTION_ROWS_INL_H
#undef WEFT_KERNELS_ATTENTION_ROWS_INL_H
#else
#define WEFT_KERNELS_ATTENTION_ROWS_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/attention/attention_heads.h"
#include "kernels/simd/math_inl.h"
#include "kernels/simd/philox_inl.h"
#include "kernels/simd/rows_inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {

/// Factors of dropout, 0 or 1 / (1 - p), for the scores of keys [key, key + n) of a query.
template <class Acc>
void dropout_factors(const AttentionProblem& p, int64_t pair, int64_t query, int64_t key, int64_t n,
                     Acc* HWY_RESTRICT factors) {
  constexpr int64_t kWords = 1024;
  alignas(64) uint32_t words[kWords];
  const auto kept = static_cast<Acc>(1 / (1 - p.dropout));
  const uint32_t threshold = p.threshold();
  const int64_t first = (pair * p.q.size(2) + query) * p.k.size(2) + key;
  for (int64_t done = 0; done < n;) {
    // A block of Philox is four words; the row may begin within one.
    const int64_t skip = (first + done) % 4, count = std::min(n - done, kWords - skip);
    philox_words(p.seed, p.drawn_stream(), p.offset + static_cast<uint64_t>((first + done) / 4),
                 (skip + count + 3) / 4, words);
    for (int64_t i = 0; i < count; ++i) {
      factors[done + i] = words[skip + i] >> 9 < threshold ? 0 : kept;
    }
    done += count;
  }
}

/// Masks the scores of the keys [key, key + n) of a query, which the scale will multiply: those of
/// hidden keys become -inf under it. Returns whether any is left.
template <class Acc>
bool mask_scores(const MaskRow& mask, int64_t key, int64_t n, Acc scale, Acc* scores) {
  constexpr Acc kInfinity = std::numeric_limits<Acc>::infinity();
  if (!mask.exists()) return true;
  const Acc hidden = -std::copysign(kInfinity, scale);
  // Selected, not branched on: nobody predicts a mask.
  const auto apply = [&](auto stride) -> bool {
    const int64_t step = stride;
    if (mask.is_additive()) {
      const Acc* const added = static_cast<const Acc*>(mask.row.at(0, key));
      const Acc floor = static_cast<Acc>(kMaskedScore) / scale;
      int left = 0;
      for (int64_t j = 0; j < n; ++j) {
        const Acc value = added[j * step], sum = scores[j] + value / scale;
        left |= value != -kInfinity;
        const Acc masked = value == -kInfinity ? hidden : floor;
        scores[j] = value <= static_cast<Acc>(kLeastAdded) ? masked : sum;
      }
      return left != 0;
    }
    const auto* const shown = static_cast<const uint8_t*>(mask.row.at(0, key));
    uint8_t left = 0;
    for (int64_t j = 0; j < n; ++j) {
      left |= shown[j * step];
      const Acc score = scores[j];
      scores[j] = shown[j * step] != 0 ? score : hidden;
    }
    return left != 0;
  };
  const int64_t stride = mask.row.col_stride;
  return stride == 1 ? apply(std::integral_constant<int64_t, 1>()) : apply(stride);
}

/// max(scale * s) over n scores; -inf for none.
template <class Acc>
HWY_INLINE Acc max_score(const Acc* s, int64_t n, Acc scale) {
  const hn::ScalableTag<Acc> d;
  const auto low = hn::Set(d, -std::numeric_limits<Acc>::infinity());
  const auto factor = hn::Set(d, scale);
  auto max = low;
  for_each_vector(d, n, [&](size_t i, size_t m) HWY_ATTR {
    const auto v = hn::Mul(load_part(d, s + i, m), factor);
    max = hn::Max(max, m == hn::Lanes(d) ? v : hn::IfThenElse(hn::FirstN(d, m), v, low));
  });
  return hn::GetLane(hn::MaxOfLanes(d, max));
}

/// s = exp(scale s - max); returns the sum.
template <class Acc>
HWY_INLINE Acc exponentials(Acc* s, int64_t n, Acc scale, Acc max) {
  const hn::ScalableTag<Acc> d;
  const auto factor = hn::Set(d, scale), shift = hn::Set(d, max);
  return sum_vectors(d, n, [&](size_t i, size_t m) HWY_ATTR {
    const auto e = exp_or_nan(d, hn::Sub(hn::Mul(load_part(d, s + i, m), factor), shift));
    store_part(d, e, s + i, m);
    return e;
  });
}

/// The backward pass of n scores: s becomes dropout(P) and dp becomes dS, with
///   P = exp(scale s - lse), dS = scale P (factor dp - delta);  factors: dropout's, or null.
template <class Acc>
HWY_INLINE void backward_row(Acc* s, Acc* dp, int64_t n, Acc scale, Acc lse, Acc delta,
                             const Acc* factors) {
  const hn::ScalableTag<Acc> d;
  const auto factor = hn::Set(d, scale), shift = hn::Set(d, lse), mean = hn::Set(d, delta);
  for_each_vector(d, n, [&](size_t i, size_t m) HWY_ATTR {
    const auto p = exp_or_nan(d, hn::Sub(hn::Mul(load_part(d, s + i, m), factor), shift));
    auto g = load_part(d, dp + i, m);
    auto kept = p;
    if (factors) {
      const auto f = load_part(d, factors + i, m);
      g = hn::Mul(g, f);
      kept = hn::Mul(p, f);
    }
    store_part(d, kept, s + i, m);
    store_part(d, hn::Mul(hn::Mul(p, hn::Sub(g, mean)), factor), dp + i, m);
  });
}

/// sum(a * b) of n elements of any floating dtype with unit stride.
template <class Acc>
Acc dot_of_rows(DType dtype, const void* a, const void* b, int64_t n, Acc* buffer_a,
                Acc* buffer_b) {
  const Acc* x = read_row(dtype, a, 0, 1, n, buffer_a);
  const Acc* y = read_row(dtype, b, 0, 1, n, buffer_b);
  const hn::ScalableTag<Acc> d;
  return sum_vectors(d, n, [&](size_t i, size_t m) HWY_ATTR {
    return hn::Mul(load_part(d, x + i, m), load_part(d, y + i, m));
  });
}

}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
