// One pass over all tensors, cut into chunks over the whole list; each chunk notes whether it met a
// value that is not finite, and its sum of squares. The limiter is memory.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/multi_tensor_scale/multi_tensor_scale_cpu_highway.cc"
#include "core/simd/targets.h"

#include <algorithm>

#include "kernels/multi_tensor/chunks.h"
#include "kernels/multi_tensor/scale_inl.h"
#include "kernels/multi_tensor_scale/multi_tensor_scale.h"
#include "kernels/simd/variant.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

void multi_tensor_scale_chunks(const MultiTensorScaleProblem& p) {
  assert_matching(p.tensors, p.tensors);
  const bool wants_norm = p.norm.defined();
  const double factor = p.factor_from.defined() ? *p.factor_from.data<float>() : p.factor;
  const ChunkTasks tasks(p.tensors);
  std::vector<char> is_finite(tasks.count(), true);
  std::vector<double> sums(tasks.count());
  tasks.for_each([&](int64_t task, const TensorChunk& chunk) {
    const Tensor& tensor = p.tensors[chunk.tensor];
    const auto scale = tensor.dtype() == DType::f64 ? scale_range<double> : scale_range<float>;
    SumOfSquares squares;
    is_finite[task] &=
        scale(tensor, chunk.begin, chunk.end, factor, wants_norm ? &squares : nullptr);
    if (wants_norm) sums[task] += squares.total();
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
WEFT_HIGHWAY_VARIANT(multi_tensor_scale_cpu_highway, MultiTensorScaleProblem,
                     multi_tensor_scale_chunks)
#endif
