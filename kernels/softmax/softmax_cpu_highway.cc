// A row at a time, where it lies or widened to f32 (or f64) in L1: the maximum, the exponentials
// and their sum, and one scaled write. Rows along another axis than the last are gathered first.
// The limiter is the exponential in forward, memory in backward.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/softmax/softmax_cpu_highway.cc"
#include "core/simd/targets_inl.h"

#include <hwy/aligned_allocator.h>
#include <cmath>

#include "core/parallel.h"
#include "kernels/simd/math_inl.h"
#include "kernels/simd/rows_inl.h"
#include "kernels/simd/variant.h"
#include "kernels/softmax/softmax.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

/// out = softmax(x); `exponentials` has room for n, and may be out but not x.
template <class Acc>
void forward_row(const Acc* x, int64_t n, bool log, Acc* exponentials, Acc* out) {
  const hn::ScalableTag<Acc> d;
  using V = hn::Vec<decltype(d)>;
  V max = hn::Set(d, -INFINITY);
  for_each_vector(d, n, [&](size_t i, size_t m) HWY_ATTR {
    const V v = load_part(d, x + i, m);
    // Where v is NaN either may be the maximum; the exponential makes the sum NaN.
    const V larger = hn::Max(max, v);
    max = m == hn::Lanes(d) ? larger : hn::IfThenElse(hn::FirstN(d, m), larger, max);
  });
  max = hn::MaxOfLanes(d, max);
  const Acc total = sum_vectors(d, n, [&](size_t i, size_t m) HWY_ATTR {
    const V e = exp_or_nan(d, hn::Sub(load_part(d, x + i, m), max));
    if (!log) store_part(d, e, exponentials + i, m);
    return e;
  });
  if (log) {
    const V log_total = hn::Set(d, std::log(total));
    for_each_vector(d, n, [&](size_t i, size_t m) HWY_ATTR {
      const V shifted = hn::Sub(load_part(d, x + i, m), max);
      store_part(d, hn::Sub(shifted, log_total), out + i, m);
    });
  } else {
    const V scale = hn::Set(d, 1 / total);
    for_each_vector(d, n, [&](size_t i, size_t m) HWY_ATTR {
      store_part(d, hn::Mul(load_part(d, exponentials + i, m), scale), out + i, m);
    });
  }
}

template <class Acc>
void backward_row(const Acc* dy, const Acc* y, int64_t n, bool log, Acc* dx) {
  const hn::ScalableTag<Acc> d;
  using V = hn::Vec<decltype(d)>;
  const V sum = hn::Set(d, sum_vectors(d, n, [&](size_t i, size_t m) HWY_ATTR {
                          const V g = load_part(d, dy + i, m);
                          return log ? g : hn::Mul(g, load_part(d, y + i, m));
                        }));
  for_each_vector(d, n, [&](size_t i, size_t m) HWY_ATTR {
    const V g = load_part(d, dy + i, m), out = load_part(d, y + i, m);
    const V v = log ? hn::Sub(g, hn::Mul(exp_or_nan(d, out), sum)) : hn::Mul(out, hn::Sub(g, sum));
    store_part(d, v, dx + i, m);
  });
}

template <class Acc>
void run(const SoftmaxProblem& p) {
  if (p.y.numel() == 0) return;
  const int axis = wrap_dim(p.axis, p.y.dim(), "softmax");
  const int64_t n = p.y.shape()[axis];
  const Rows x(p.x, axis), y(p.y, axis), dy(p.dy, axis), dx(p.dx, axis);
  const int64_t grain = std::max<int64_t>(1, 16384 / n);
  parallel_for(p.y.numel() / n, grain, [&](int64_t begin, int64_t end) {
    const auto buffers = hwy::AllocateAligned<Acc>(3 * n);
    Acc* const in_buffer = buffers.get();
    Acc* const y_buffer = buffers.get() + n;
    Acc* const out_buffer = buffers.get() + 2 * n;
    for (int64_t r = begin; r < end; ++r) {
      if (p.backward()) {
        Acc* const out = dx.target(r, out_buffer);
        backward_row(dy.read(r, n, in_buffer), y.read(r, n, y_buffer), n, p.log, out);
        dx.write(r, out, n);
      } else {
        Acc* const out = y.target(r, out_buffer);
        forward_row(x.read(r, n, in_buffer), n, p.log, out_buffer, out);
        y.write(r, out, n);
      }
    }
  });
}

void softmax_rows(const SoftmaxProblem& p) {
  p.dtype() == DType::f64 ? run<double>(p) : run<float>(p);
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
WEFT_HIGHWAY_VARIANT(softmax_cpu_highway, SoftmaxProblem, softmax_rows)
#endif
