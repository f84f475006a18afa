// A row at a time: widened to f32 (or f64) into a buffer that stays in cache, then max, exp and
// sum, and one scaled write. Rows along the last axis are contiguous; others are gathered first.
// The limiter is the exponential at long rows and memory at short ones.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/softmax/softmax_cpu_highway.cc"
#include "kernels/simd/targets.h"
// The order matters: foreach_target re-includes this file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <hwy/aligned_allocator.h>
#include <hwy/contrib/math/math-inl.h>
#include <cmath>
#include <type_traits>

#include "core/parallel.h"
#include "core/view.h"
#include "kernels/simd/convert_inl.h"
#include "kernels/softmax/softmax.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

/// Elements of one row, `stride` apart, as Acc.
template <class T, class Acc>
void load_row(const T* p, int64_t stride, int64_t n, Acc* row) {
  if constexpr (std::is_same_v<Acc, float>) {
    if (stride == 1) {
      const F32 d;
      for_each_vector(d, n, [&](size_t i, size_t m) HWY_ATTR {
        if (m == hn::Lanes(d)) return hn::StoreU(load_f32(d, p + i), d, row + i);
        store_f32_n(d, load_f32_n(d, p + i, m), row + i, m);
      });
      return;
    }
  }
  for (int64_t i = 0; i < n; ++i) row[i] = static_cast<Acc>(p[i * stride]);
}

template <class T, class Acc>
void store_row(const Acc* row, int64_t n, T* p, int64_t stride) {
  if constexpr (std::is_same_v<Acc, float>) {
    if (stride == 1) {
      const F32 d;
      for_each_vector(d, n, [&](size_t i, size_t m) HWY_ATTR {
        if (m == hn::Lanes(d)) return store_f32(d, hn::LoadU(d, row + i), p + i);
        store_f32_n(d, load_f32_n(d, row + i, m), p + i, m);
      });
      return;
    }
  }
  for (int64_t i = 0; i < n; ++i) p[i * stride] = static_cast<T>(row[i]);
}

template <class Acc>
void forward_row(Acc* row, int64_t n, bool log) {
  const hn::ScalableTag<Acc> d;
  using V = hn::Vec<decltype(d)>;
  const size_t lanes = hn::Lanes(d);
  // The buffer is padded to whole vectors with -inf, whose exponential is 0.
  const size_t padded = (n + lanes - 1) / lanes * lanes;
  for (size_t i = n; i < padded; ++i) row[i] = -INFINITY;
  V max = hn::Set(d, -INFINITY);
  for (size_t i = 0; i < padded; i += lanes) max = hn::Max(max, hn::Load(d, row + i));
  max = hn::MaxOfLanes(d, max);
  V sum = hn::Zero(d);
  for (size_t i = 0; i < padded; i += lanes) {
    const V shifted = hn::Sub(hn::Load(d, row + i), max);
    const V e = hn::Exp(d, shifted);
    sum = hn::Add(sum, e);
    hn::Store(log ? shifted : e, d, row + i);
  }
  const Acc total = hn::GetLane(hn::SumOfLanes(d, sum));
  const V scale = hn::Set(d, log ? std::log(total) : 1 / total);
  for (size_t i = 0; i < padded; i += lanes) {
    const V v = hn::Load(d, row + i);
    hn::Store(log ? hn::Sub(v, scale) : hn::Mul(v, scale), d, row + i);
  }
}

template <class Acc>
void backward_row(Acc* dy, const Acc* y, int64_t n, bool log) {
  const hn::ScalableTag<Acc> d;
  using V = hn::Vec<decltype(d)>;
  const size_t lanes = hn::Lanes(d);
  V sum = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= static_cast<size_t>(n); i += lanes) {
    const V g = hn::Load(d, dy + i);
    sum = log ? hn::Add(sum, g) : hn::MulAdd(g, hn::Load(d, y + i), sum);
  }
  Acc total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < static_cast<size_t>(n); ++i) total += log ? dy[i] : dy[i] * y[i];
  const size_t padded = (n + lanes - 1) / lanes * lanes;
  const V s = hn::Set(d, total);
  for (i = 0; i < padded; i += lanes) {
    const V g = hn::Load(d, dy + i);
    const V out = hn::Load(d, y + i);
    hn::Store(log ? hn::NegMulAdd(hn::Exp(d, out), s, g) : hn::Mul(out, hn::Sub(g, s)), d, dy + i);
  }
}

template <class T>
void run(const SoftmaxProblem& p) {
  using Acc = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const int axis = wrap_dim(p.axis, p.x.dim(), "softmax");
  const int64_t n = p.x.shape()[axis];
  if (p.x.numel() == 0) return;
  // Every row's first element: the tensors without their axis.
  const auto first_of_rows = [axis](const Tensor& t) { return view::select(t, axis, 0); };
  const Tensor& out = p.backward() ? p.dx : p.y;
  std::vector<int64_t> x_rows, y_rows, out_rows;
  const auto collect = [&](const Tensor& t, std::vector<int64_t>& rows) {
    const Tensor first = first_of_rows(t);
    rows.reserve(first.numel());
    for_each_offset(first.shape(), first.strides(), [&](int64_t i) { rows.push_back(i); });
  };
  collect(p.x, x_rows);
  collect(out, out_rows);
  if (p.backward()) collect(p.y, y_rows);
  const int64_t grain = std::max<int64_t>(1, 16384 / n);
  parallel_for(static_cast<int64_t>(x_rows.size()), grain, [&](int64_t begin, int64_t end) {
    const size_t padded = n + HWY_MAX_BYTES / sizeof(Acc);
    const auto buffer = hwy::AllocateAligned<Acc>(padded);
    const auto second = p.backward() ? hwy::AllocateAligned<Acc>(padded) : nullptr;
    std::fill_n(buffer.get(), padded, Acc{0});
    if (second) std::fill_n(second.get(), padded, Acc{0});
    for (int64_t r = begin; r < end; ++r) {
      load_row(p.x.data<T>() + x_rows[r], p.x.strides()[axis], n, buffer.get());
      if (p.backward()) {
        load_row(p.y.data<T>() + y_rows[r], p.y.strides()[axis], n, second.get());
        backward_row(buffer.get(), second.get(), n, p.log);
      } else {
        forward_row(buffer.get(), n, p.log);
      }
      store_row(buffer.get(), n, out.data<T>() + out_rows[r], out.strides()[axis]);
    }
  });
}

void softmax_rows(const SoftmaxProblem& p) {
  switch (p.dtype()) {
    case DType::f64:
      return run<double>(p);
    case DType::f32:
      return run<float>(p);
    case DType::f16:
      return run<f16>(p);
    case DType::bf16:
      return run<bf16>(p);
    default:
      WEFT_ASSERT(false);
  }
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(softmax_rows);

void softmax_cpu_highway(const SoftmaxProblem& problem) {
  HWY_DYNAMIC_DISPATCH(softmax_rows)(problem);
}

}  // namespace weft::kernels
#endif
