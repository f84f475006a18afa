// Elements multiplied in place, checked, and their squares summed, block by block in cache.
// Included once per Highway target, as kernels/simd/rows_inl.h is.

// Per-target include guard, as Highway's own -inl headers have.
#if defined(WEFT_KERNELS_MULTI_TENSOR_SCALE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_MULTI_TENSOR_SCALE_INL_H
#undef WEFT_KERNELS_MULTI_TENSOR_SCALE_INL_H
#else
#define WEFT_KERNELS_MULTI_TENSOR_SCALE_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "core/tensor.h"
#include "kernels/multi_tensor/squares_inl.h"
#include "kernels/simd/rows_inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {

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

/// Multiplies elements [begin, end) of a contiguous tensor by factor, in Acc arithmetic, unless it
/// is 1; adds the squares of the elements as written to `squares`, unless that is null. Returns
/// false when some element was infinite or NaN before.
template <class Acc>
bool scale_range(const Tensor& tensor, int64_t begin, int64_t end, double factor,
                 SumOfSquares* squares) {
  constexpr int64_t kBlock = 1024;
  HWY_ALIGN Acc buffer[kBlock];
  const DType dtype = tensor.dtype();
  bool is_finite = true;
  for (int64_t first = begin; first < end; first += kBlock) {
    const int64_t n = std::min(kBlock, end - first);
    const Acc* x = read_row(dtype, tensor.raw(), first, 1, n, buffer);
    Acc* const out = factor == 1 ? nullptr : row_target(dtype, tensor.raw(), first, 1, buffer);
    is_finite &= scale_block(x, n, factor, out);
    if (out) {
      write_row(out, n, dtype, tensor.raw(), first, 1);
      if (squares) x = read_row(dtype, tensor.raw(), first, 1, n, buffer);
    }
    if (squares) squares->add(x, n);
  }
  return is_finite;
}

}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
