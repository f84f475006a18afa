// One pass over all tensors, cut into chunks over the whole list; each chunk notes whether it met a
// value that is not finite, and its sum of squares. The limiter is memory.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/multi_tensor_scale/multi_tensor_scale_cpu_highway.cc"
#include "core/simd/targets_inl.h"

#include <algorithm>

#include "kernels/multi_tensor/chunks.h"
#include "kernels/multi_tensor/squares_inl.h"
#include "kernels/multi_tensor_scale/multi_tensor_scale.h"
#include "kernels/simd/rows_inl.h"
#include "kernels/simd/variant.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

/// Multiplies elements [begin, end) of a contiguous tensor by factor, in Acc arithmetic, unless it
/// is 1; adds the squares of the elements as written to `squares`, unless that is null. Returns
/// false when some element was infinite or NaN before.
template <class Acc>
bool scale_range(const Tensor& tensor, int64_t begin, int64_t end, double factor,
                 SumOfSquares* squares) {
  constexpr int64_t kBlock = 1024;
  HWY_ALIGN Acc buffer[kBlock];
  const DType dtype = tensor.dtype();
  const hn::ScalableTag<Acc> d;
  const auto f = hn::Set(d, static_cast<Acc>(factor));
  // x - x is 0 for finite x and NaN otherwise, so the sum of all is 0 or NaN.
  auto difference = hn::Zero(d);
  for (int64_t first = begin; first < end; first += kBlock) {
    const int64_t n = std::min(kBlock, end - first);
    const Acc* x = read_row(dtype, tensor.raw(), first, 1, n, buffer);
    Acc* const out = factor == 1 ? nullptr : row_target(dtype, tensor.raw(), first, 1, buffer);
    for_each_vector(d, n, [&](size_t i, size_t m) HWY_ATTR {
      const auto v = load_part(d, x + i, m);
      difference = hn::Add(difference, hn::Sub(v, v));
      if (out) store_part(d, hn::Mul(v, f), out + i, m);
    });
    if (out) {
      write_row(out, n, dtype, tensor.raw(), first, 1);
      if (squares) x = read_row(dtype, tensor.raw(), first, 1, n, buffer);
    }
    if (squares) squares->add(x, n);
  }
  return hn::AllTrue(d, hn::Eq(difference, hn::Zero(d)));
}

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
