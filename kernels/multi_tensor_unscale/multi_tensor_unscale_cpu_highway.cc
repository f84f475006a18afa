// One pass over all tensors, cut into chunks over the whole list; each chunk notes whether it met a
// value that is not finite, and its sum of squares. The limiter is memory.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/multi_tensor_unscale/multi_tensor_unscale_cpu_highway.cc"
#include "kernels/simd/targets.h"
// The order matters: foreach_target re-includes this file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "kernels/multi_tensor/chunks.h"
#include "kernels/multi_tensor/squares_inl.h"
#include "kernels/multi_tensor_unscale/multi_tensor_unscale.h"

#ifndef WEFT_KERNELS_MULTI_TENSOR_UNSCALE_SUMMARY
#define WEFT_KERNELS_MULTI_TENSOR_UNSCALE_SUMMARY
namespace weft::kernels {
namespace {

/// What a run of elements says of itself.
struct Summary {
  bool is_finite = true;
  double squares = 0;
};

}  // namespace
}  // namespace weft::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

/// out = x * factor, unless out is null; false when some x was not finite.
template <class Acc>
bool scale_block(const Acc* x, int64_t n, double factor, Acc* out) {
  const hn::ScalableTag<Acc> d;
  const auto f = hn::Set(d, static_cast<Acc>(factor));
  // x - x is 0 for finite x and NaN otherwise, so the sum of all is 0 or NaN.
  auto difference = hn::Zero(d);
  for_each_vector(d, n, [&](size_t i, size_t m) HWY_ATTR {
    const auto v = load_part(d, x + i, m);
    difference = hn::Add(difference, hn::Sub(v, v));
    if (out) store_part(d, hn::Mul(v, f), out + i, m);
  });
  return hn::AllTrue(d, hn::Eq(difference, hn::Zero(d)));
}

template <class Acc>
Summary unscale_range(const Tensor& tensor, int64_t begin, int64_t end, double factor,
                      bool wants_norm) {
  constexpr int64_t kBlock = 1024;
  HWY_ALIGN Acc buffer[kBlock];
  const DType dtype = tensor.dtype();
  Summary summary;
  SumOfSquares squares;
  for (int64_t first = begin; first < end; first += kBlock) {
    const int64_t n = std::min(kBlock, end - first);
    const Acc* x = read_row(dtype, tensor.raw(), first, 1, n, buffer);
    Acc* const out = factor == 1 ? nullptr : row_target(dtype, tensor.raw(), first, 1, buffer);
    summary.is_finite &= scale_block(x, n, factor, out);
    if (out) {
      write_row(out, n, dtype, tensor.raw(), first, 1);
      if (wants_norm) x = read_row(dtype, tensor.raw(), first, 1, n, buffer);
    }
    if (wants_norm) squares.add(x, n);
  }
  if (wants_norm) summary.squares = squares.total();
  return summary;
}

void multi_tensor_unscale_chunks(const MultiTensorUnscaleProblem& p) {
  assert_matching(p.tensors, p.tensors);
  const bool wants_norm = p.norm.defined();
  const std::vector<TensorChunk> chunks = tensor_chunks(p.tensors);
  const std::vector<int64_t> tasks = chunk_tasks(chunks);
  const int64_t count = static_cast<int64_t>(tasks.size()) - 1;
  std::vector<Summary> summaries(count);
  parallel_for(count, 1, [&](int64_t task, int64_t) {
    for (int64_t c = tasks[task]; c < tasks[task + 1]; ++c) {
      const Tensor& tensor = p.tensors[chunks[c].tensor];
      const auto unscale =
          tensor.dtype() == DType::f64 ? unscale_range<double> : unscale_range<float>;
      const Summary s = unscale(tensor, chunks[c].begin, chunks[c].end, p.factor, wants_norm);
      summaries[task].is_finite &= s.is_finite;
      summaries[task].squares += s.squares;
    }
  });
  if (p.found_inf.defined()) {
    const bool is_finite = std::ranges::all_of(summaries, &Summary::is_finite);
    *p.found_inf.data<float>() = is_finite ? 0 : 1;
  }
  if (!wants_norm) return;
  double total = 0;
  for (const Summary& summary : summaries) total += summary.squares;
  const double norm = std::sqrt(total);
  if (p.norm.dtype() == DType::f64) {
    *p.norm.data<double>() = norm;
  } else {
    *p.norm.data<float>() = static_cast<float>(norm);
  }
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(multi_tensor_unscale_chunks);

void multi_tensor_unscale_cpu_highway(const MultiTensorUnscaleProblem& problem) {
  HWY_DYNAMIC_DISPATCH(multi_tensor_unscale_chunks)(problem);
}

}  // namespace weft::kernels
#endif
