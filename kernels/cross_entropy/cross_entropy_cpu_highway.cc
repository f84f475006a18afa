// A row at a time, widened to f32 (or f64) in L1. Forward: the maximum, the sum of exponentials,
// and the sums of shifted logits that the targets weigh; every difference is taken from the
// maximum, so that a large common offset of the logits costs no accuracy. Backward: one pass from
// the saved log-sum-exp. The limiter is the exponential.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cross_entropy/cross_entropy_cpu_highway.cc"
#include "core/simd/targets_inl.h"

#include <hwy/aligned_allocator.h>
#include <cmath>

#include "core/parallel.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/simd/math_inl.h"
#include "kernels/simd/rows_inl.h"
#include "kernels/simd/variant.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

/// The place of a row's hard label, or -1 when the row is ignored.
int64_t hard_label(const CrossEntropyProblem& p, int64_t row, int64_t classes) {
  const int64_t label = p.labels.data<int64_t>()[row * p.labels.strides()[0]];
  if (label == p.ignore_index) return -1;
  WEFT_ASSERT(label >= 0 && label < classes);
  return label;
}

template <class Acc>
Acc max_of(const Acc* x, int64_t n) {
  const hn::ScalableTag<Acc> d;
  auto max = hn::Set(d, -INFINITY);
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= static_cast<size_t>(n); i += lanes) max = hn::Max(max, hn::LoadU(d, x + i));
  Acc result = hn::GetLane(hn::MaxOfLanes(d, max));
  for (; i < static_cast<size_t>(n); ++i) result = std::max(result, x[i]);
  return result;
}

template <class Acc>
void forward(const CrossEntropyProblem& p, int64_t rows, int64_t n, int64_t grain) {
  const hn::ScalableTag<Acc> d;
  using V = hn::Vec<decltype(d)>;
  const Rows logits(p.logits), labels(p.labels);
  const Rows losses = Rows::of_scalars(p.loss), lses = Rows::of_scalars(p.lse);
  const Acc smoothing = static_cast<Acc>(p.label_smoothing);
  const Acc keep = static_cast<Acc>(1 - p.label_smoothing);
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) HWY_ATTR {
    const auto buffers = hwy::AllocateAligned<Acc>(2 * n);
    for (int64_t r = begin; r < end; ++r) {
      const Acc* const x = logits.read(r, n, buffers.get());
      const Acc max = max_of(x, n);
      const V vmax = hn::Set(d, max);
      const auto shifted = [&](size_t i, size_t m)
                               HWY_ATTR { return hn::Sub(load_part(d, x + i, m), vmax); };
      const Acc log_sum = std::log(sum_vectors(
          d, n, [&](size_t i, size_t m) HWY_ATTR { return exp_or_nan(d, shifted(i, m)); }));
      if (lses) lses.scalar<Acc>(r) = max + log_sum;
      Acc& loss = losses.scalar<Acc>(r);
      const V vlog_sum = hn::Set(d, log_sum);
      const auto uniform_loss = [&]() HWY_ATTR {  // mean over c of -log softmax
        return sum_vectors(d, n,
                           [&](size_t i, size_t m)
                               HWY_ATTR { return hn::Sub(vlog_sum, shifted(i, m)); }) /
               static_cast<Acc>(n);
      };
      if (p.hard()) {
        const int64_t label = hard_label(p, r, n);
        loss = label < 0 ? 0 : keep * (log_sum - (x[label] - max));
        if (label >= 0 && smoothing != 0) loss += smoothing * uniform_loss();
      } else {
        const Acc* const t = labels.read(r, n, buffers.get() + n);
        loss = keep * sum_vectors(d, n, [&](size_t i, size_t m) HWY_ATTR {
                 return hn::Mul(load_part(d, t + i, m), hn::Sub(vlog_sum, shifted(i, m)));
               });
        if (smoothing != 0) loss += smoothing * uniform_loss();
      }
    }
  });
}

template <class Acc>
void backward(const CrossEntropyProblem& p, int64_t rows, int64_t n, int64_t grain) {
  const hn::ScalableTag<Acc> d;
  using V = hn::Vec<decltype(d)>;
  const Rows logits(p.logits), labels(p.labels), dlogits(p.dlogits);
  const Rows lses = Rows::of_scalars(p.lse), dlosses = Rows::of_scalars(p.dloss);
  const Acc share = static_cast<Acc>(p.label_smoothing / static_cast<double>(n));
  const Acc keep = static_cast<Acc>(1 - p.label_smoothing);
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) HWY_ATTR {
    const auto buffers = hwy::AllocateAligned<Acc>(3 * n);
    for (int64_t r = begin; r < end; ++r) {
      Acc* const out = dlogits.target(r, buffers.get() + 2 * n);
      const int64_t label = p.hard() ? hard_label(p, r, n) : 0;
      if (label < 0) {
        std::fill_n(out, n, Acc{0});
        dlogits.write(r, out, n);
        continue;
      }
      const Acc* const x = logits.read(r, n, buffers.get());
      const V lse = hn::Set(d, lses.scalar<Acc>(r));
      const Acc dloss = dlosses.scalar<Acc>(r);
      const V vdloss = hn::Set(d, dloss), vshare = hn::Set(d, share);
      const auto softmax = [&](size_t i, size_t m) HWY_ATTR {
        return exp_or_nan(d, hn::Sub(load_part(d, x + i, m), lse));
      };
      if (p.hard()) {
        const Acc at_label = x[label];
        for_each_vector(d, n, [&](size_t i, size_t m) HWY_ATTR {
          store_part(d, hn::Mul(hn::Sub(softmax(i, m), vshare), vdloss), out + i, m);
        });
        const Acc probability = hn::GetLane(exp_or_nan(d, hn::Sub(hn::Set(d, at_label), lse)));
        out[label] = (probability - (keep + share)) * dloss;
      } else {
        const Acc* const t = labels.read(r, n, buffers.get() + n);
        const V vkeep = hn::Set(d, keep);
        const auto target = [&](size_t i, size_t m) HWY_ATTR {
          return hn::Add(hn::Mul(vkeep, load_part(d, t + i, m)), vshare);
        };
        const V total = hn::Set(d, sum_vectors(d, n, target));
        for_each_vector(d, n, [&](size_t i, size_t m) HWY_ATTR {
          const V v = hn::Sub(hn::Mul(softmax(i, m), total), target(i, m));
          store_part(d, hn::Mul(v, vdloss), out + i, m);
        });
      }
      dlogits.write(r, out, n);
    }
  });
}

void cross_entropy_rows(const CrossEntropyProblem& p) {
  const int64_t rows = p.logits.shape()[0], classes = p.logits.shape()[1];
  WEFT_ASSERT(classes > 0);
  WEFT_ASSERT(!p.backward() || p.lse.defined());
  const int64_t grain = std::max<int64_t>(1, 8192 / classes);
  const auto run = [&]<class Acc>(Acc) {
    if (p.forward()) forward<Acc>(p, rows, classes, grain);
    if (p.backward()) backward<Acc>(p, rows, classes, grain);
  };
  p.dtype() == DType::f64 ? run(0.0) : run(0.0f);
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
WEFT_HIGHWAY_VARIANT(cross_entropy_cpu_highway, CrossEntropyProblem, cross_entropy_rows)
#endif
