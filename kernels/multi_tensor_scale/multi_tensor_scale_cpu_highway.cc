// One pass over all tensors, cut into chunks over the whole list; each chunk notes whether it met a
// value that is not finite, and its sum of squares. The limiter is memory.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/multi_tensor_scale/multi_tensor_scale_cpu_highway.cc"
#include "core/simd/targets.h"
// The order matters: foreach_target re-includes this file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "core/parallel.h"
#include "kernels/multi_tensor/chunks.h"
#include "kernels/multi_tensor/scale_inl.h"
#include "kernels/multi_tensor_scale/multi_tensor_scale.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

void multi_tensor_scale_chunks(const MultiTensorScaleProblem& p) {
  assert_matching(p.tensors, p.tensors);
  const bool wants_norm = p.norm.defined();
  const double factor = p.factor_from.defined() ? *p.factor_from.data<float>() : p.factor;
  const std::vector<TensorChunk> chunks = tensor_chunks(p.tensors);
  const std::vector<int64_t> tasks = chunk_tasks(chunks);
  const int64_t count = static_cast<int64_t>(tasks.size()) - 1;
  std::vector<char> is_finite(count, true);
  std::vector<double> sums(count);
  parallel_for(count, 1, [&](int64_t task, int64_t) {
    for (int64_t c = tasks[task]; c < tasks[task + 1]; ++c) {
      const Tensor& tensor = p.tensors[chunks[c].tensor];
      const auto scale = tensor.dtype() == DType::f64 ? scale_range<double> : scale_range<float>;
      SumOfSquares squares;
      is_finite[task] &=
          scale(tensor, chunks[c].begin, chunks[c].end, factor, wants_norm ? &squares : nullptr);
      if (wants_norm) sums[task] += squares.total();
    }
  });
  if (p.found_inf.defined()) {
    *p.found_inf.data<float>() = std::ranges::count(is_finite, false) > 0;
  }
  if (wants_norm) store_norm(sums, p.norm);
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(multi_tensor_scale_chunks);

void multi_tensor_scale_cpu_highway(const MultiTensorScaleProblem& problem) {
  HWY_DYNAMIC_DISPATCH(multi_tensor_scale_chunks)(problem);
}

}  // namespace weft::kernels
#endif
