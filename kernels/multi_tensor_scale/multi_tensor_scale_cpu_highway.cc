// One pass over all tensors, cut into chunks over the whole list; each chunk notes whether it met a
// value that is not finite. The limiter is memory.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/multi_tensor_scale/multi_tensor_scale_cpu_highway.cc"
#include "kernels/simd/targets.h"
// The order matters: foreach_target re-includes this file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "core/parallel.h"
#include "kernels/multi_tensor/chunks.h"
#include "kernels/multi_tensor_scale/multi_tensor_scale.h"
#include "kernels/simd/rows_inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

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

/// Scales elements [begin, end) of a tensor; false when one of them was not finite.
template <class Acc>
bool scale_range(const Tensor& tensor, int64_t begin, int64_t end, double factor) {
  constexpr int64_t kBlock = 1024;
  HWY_ALIGN Acc buffer[kBlock];
  bool finite = true;
  for (int64_t first = begin; first < end; first += kBlock) {
    const int64_t n = std::min(kBlock, end - first);
    const DType dtype = tensor.dtype();
    const Acc* const x = read_row(dtype, tensor.raw(), first, 1, n, buffer);
    Acc* const out = factor == 1 ? nullptr : row_target(dtype, tensor.raw(), first, 1, buffer);
    finite &= scale_block(x, n, factor, out);
    if (out) write_row(out, n, dtype, tensor.raw(), first, 1);
  }
  return finite;
}

void multi_tensor_scale_chunks(const MultiTensorScaleProblem& p) {
  assert_matching(p.tensors, p.tensors);
  const std::vector<TensorChunk> chunks = tensor_chunks(p.tensors);
  const std::vector<int64_t> tasks = chunk_tasks(chunks);
  const int64_t count = static_cast<int64_t>(tasks.size()) - 1;
  std::vector<char> finite(count, true);
  parallel_for(count, 1, [&](int64_t task, int64_t) {
    for (int64_t c = tasks[task]; c < tasks[task + 1]; ++c) {
      const Tensor& tensor = p.tensors[chunks[c].tensor];
      const auto scale = tensor.dtype() == DType::f64 ? scale_range<double> : scale_range<float>;
      finite[task] &= scale(tensor, chunks[c].begin, chunks[c].end, p.factor);
    }
  });
  if (!p.nonfinite.defined()) return;
  *p.nonfinite.data<bool>() = std::find(finite.begin(), finite.end(), false) != finite.end();
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
