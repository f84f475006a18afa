// A channel at a time: its elements are N runs of L = H W side by side, read in pieces that stay in
// cache and widened to f32 (f64 for f64). Sums are taken in f64, in four vectors of lanes added in
// a fixed order. A channel of a batch is small enough (512 KiB at 128 images of 32x32) for the
// passes after the first to find it in L2; the limiter is memory.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/batch_norm/batch_norm_cpu_channels.cc"
#include "core/simd/targets_inl.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/parallel.h"
#include "core/view.h"
#include "kernels/batch_norm/batch_norm.h"
#include "kernels/copy/copy.h"
#include "kernels/simd/rows_inl.h"
#include "kernels/simd/variant.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

constexpr int64_t kPiece = 4096;

/// The elements [n, c, first .. first + length).
struct Run {
  int64_t n, c, first, length;
};

/// t as [N, C, L]; a vector per channel, L = 1, becomes one run of N.
struct Channels {
  explicit Channels(const Tensor& t) : tensor(t) {
    int64_t length = 1;
    for (int d = 2; d < t.dim(); ++d) length *= t.shape()[d];
    const Shape shape = {t.shape()[0], t.shape()[1], length};
    const auto viewed = view::try_reshape(t, shape);
    tensor = viewed ? *viewed : view::reshape(contiguous(t), shape);
    if (length == 1) tensor = view::transpose(tensor, 0, 2);
  }

  int64_t count() const { return tensor.shape()[1]; }
  int64_t elements() const { return tensor.shape()[0] * tensor.shape()[2]; }

  /// Calls f(run) for the pieces of channel c, in order.
  template <class F>
  void for_each_run(int64_t c, F&& f) const {
    for (int64_t n = 0; n < tensor.shape()[0]; ++n) {
      for (int64_t i = 0; i < tensor.shape()[2]; i += kPiece) {
        f(Run{n, c, i, std::min(kPiece, tensor.shape()[2] - i)});
      }
    }
  }

  int64_t offset(const Run& run) const {
    const Strides& strides = tensor.strides();
    return run.n * strides[0] + run.c * strides[1] + run.first * strides[2];
  }
  int64_t stride() const { return tensor.strides()[2]; }

  Tensor tensor;
};

HWY_INLINE auto load_f64(hn::ScalableTag<double> d, const double* p) { return hn::LoadU(d, p); }
HWY_INLINE auto load_f64(hn::ScalableTag<double> d, const float* p) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, hn::ScalableTag<double>>(), p));
}

/// A sum in f64 of vectors, then of single elements.
struct WideSum {
  static constexpr int kParts = 4;
  HWY_ALIGN double parts[kParts][HWY_MAX_BYTES / 8] = {};

  /// Adds f(vectors of the rows at i) over i. Both rows may be the same.
  template <class Acc, class F>
  HWY_INLINE void add(const Acc* a, const Acc* b, int64_t n, F&& f) {
    const hn::ScalableTag<double> d;
    const int64_t lanes = hn::Lanes(d);
    auto s0 = hn::Load(d, parts[0]), s1 = hn::Load(d, parts[1]);
    auto s2 = hn::Load(d, parts[2]), s3 = hn::Load(d, parts[3]);
    const auto at = [&](int64_t i)
                        HWY_ATTR { return f(d, load_f64(d, a + i), load_f64(d, b + i)); };
    int64_t i = 0;
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
      s0 = hn::Add(s0, at(i));
      s1 = hn::Add(s1, at(i + lanes));
      s2 = hn::Add(s2, at(i + 2 * lanes));
      s3 = hn::Add(s3, at(i + 3 * lanes));
    }
    for (; i + lanes <= n; i += lanes) s0 = hn::Add(s0, at(i));
    if (i < n) {
      HWY_ALIGN double last[2][HWY_MAX_BYTES / 8] = {};
      for (int64_t j = i; j < n; ++j) last[0][j - i] = a[j], last[1][j - i] = b[j];
      const auto v = f(d, hn::Load(d, last[0]), hn::Load(d, last[1]));
      s1 = hn::Add(s1, hn::IfThenElseZero(hn::FirstN(d, n - i), v));
    }
    hn::Store(s0, d, parts[0]);
    hn::Store(s1, d, parts[1]);
    hn::Store(s2, d, parts[2]);
    hn::Store(s3, d, parts[3]);
  }

  double total() const {
    double sum = 0;
    for (const auto& part : parts) {
      for (double lane : part) sum += lane;
    }
    return sum;
  }
};

/// Element c of a [C] tensor of f32 or f64; `missing` when there is none.
double statistic(const Tensor& t, int64_t c, double missing = 0) {
  if (!t.defined()) return missing;
  return t.dtype() == DType::f64 ? t.data<double>()[c] : t.data<float>()[c];
}

void set_statistic(const Tensor& t, int64_t c, double value) {
  if (!t.defined()) return;
  t.dtype() == DType::f64 ? t.data<double>()[c] = value
                          : t.data<float>()[c] = static_cast<float>(value);
}

template <class Acc>
const Acc* read_run(const Channels& t, const Run& run, Acc* buffer) {
  return read_row(t.tensor.dtype(), t.tensor.raw(), t.offset(run), t.stride(), run.length, buffer);
}

/// t[i] = f(i) for the elements of a run.
template <class Acc, class F>
HWY_INLINE void write_run(const Channels& t, const Run& run, Acc* buffer, F&& f) {
  Acc* HWY_RESTRICT out =
      row_target(t.tensor.dtype(), t.tensor.raw(), t.offset(run), t.stride(), buffer);
  for (int64_t i = 0; i < run.length; ++i) out[i] = f(i);
  write_row(out, run.length, t.tensor.dtype(), t.tensor.raw(), t.offset(run), t.stride());
}

template <class Acc>
void forward(const BatchNormProblem& p) {
  const Channels x(p.x), y(p.y);
  const double count = static_cast<double>(x.elements());
  parallel_for(x.count(), 1, [&](int64_t begin, int64_t end) {
    std::vector<Acc> x_buffer(kPiece), y_buffer(kPiece);
    for (int64_t c = begin; c < end; ++c) {
      double variance;
      if (p.training) {
        WideSum sum;
        x.for_each_run(c, [&](const Run& run) HWY_ATTR {
          const Acc* row = read_run(x, run, x_buffer.data());
          sum.add(row, row, run.length, [](auto, auto v, auto) HWY_ATTR { return v; });
        });
        const double mean = sum.total() / count;
        WideSum squares;
        x.for_each_run(c, [&](const Run& run) HWY_ATTR {
          const Acc* row = read_run(x, run, x_buffer.data());
          squares.add(row, row, run.length, [mean](auto d, auto v, auto) HWY_ATTR {
            const auto centred = hn::Sub(v, hn::Set(d, mean));
            return hn::Mul(centred, centred);
          });
        });
        variance = squares.total() / count;
        set_statistic(p.mean, c, mean);
        set_statistic(p.variance, c, variance);
      } else {
        variance = statistic(p.variance, c);
      }
      const Acc mean = static_cast<Acc>(statistic(p.mean, c));
      const Acc scale = static_cast<Acc>(statistic(p.weight, c, 1) / std::sqrt(variance + p.eps));
      const Acc bias = static_cast<Acc>(statistic(p.bias, c));
      x.for_each_run(c, [&](const Run& run) HWY_ATTR {
        const Acc* HWY_RESTRICT row = read_run(x, run, x_buffer.data());
        write_run(y, run, y_buffer.data(),
                  [=](int64_t i) HWY_ATTR { return (row[i] - mean) * scale + bias; });
      });
    }
  });
}

template <class Acc>
void backward(const BatchNormProblem& p) {
  const Channels x(p.x), dy(p.dy);
  const double count = static_cast<double>(x.elements());
  const bool needs_sums = p.dweight.defined() || p.dbias.defined() || p.training;
  parallel_for(x.count(), 1, [&](int64_t begin, int64_t end) {
    std::vector<Acc> x_buffer(kPiece), dy_buffer(kPiece), dx_buffer(kPiece);
    for (int64_t c = begin; c < end; ++c) {
      const double mean = statistic(p.mean, c);
      const double rstd = 1 / std::sqrt(statistic(p.variance, c) + p.eps);
      WideSum sum_dy, sum_dy_centred;
      if (needs_sums) {
        x.for_each_run(c, [&](const Run& run) HWY_ATTR {
          const Acc* x_row = read_run(x, run, x_buffer.data());
          const Acc* dy_row = read_run(dy, run, dy_buffer.data());
          sum_dy.add(dy_row, dy_row, run.length, [](auto, auto v, auto) HWY_ATTR { return v; });
          sum_dy_centred.add(dy_row, x_row, run.length, [mean](auto d, auto g, auto v) HWY_ATTR {
            return hn::Mul(g, hn::Sub(v, hn::Set(d, mean)));
          });
        });
        set_statistic(p.dbias, c, sum_dy.total());
        set_statistic(p.dweight, c, sum_dy_centred.total() * rstd);
      }
      if (!p.dx.defined()) continue;
      // dx = scale dy - slope (x - mean) - shift
      const double weight_rstd = statistic(p.weight, c, 1) * rstd;
      const double per_element = p.training ? weight_rstd / count : 0;
      const Acc scale = static_cast<Acc>(weight_rstd);
      const Acc slope = static_cast<Acc>(per_element * rstd * rstd * sum_dy_centred.total());
      const Acc shift = static_cast<Acc>(per_element * sum_dy.total());
      const Acc centre = static_cast<Acc>(mean);
      const Channels dx(p.dx);
      dy.for_each_run(c, [&](const Run& run) HWY_ATTR {
        const Acc* HWY_RESTRICT dy_row = read_run(dy, run, dy_buffer.data());
        if (!p.training) {
          return write_run(dx, run, dx_buffer.data(),
                           [=](int64_t i) HWY_ATTR { return dy_row[i] * scale; });
        }
        const Acc* HWY_RESTRICT x_row = read_run(x, run, x_buffer.data());
        write_run(dx, run, dx_buffer.data(), [=](int64_t i) HWY_ATTR {
          return (scale * dy_row[i] - shift) - slope * (x_row[i] - centre);
        });
      });
    }
  });
}

template <class Acc>
void run(const BatchNormProblem& p) {
  p.backward() ? backward<Acc>(p) : forward<Acc>(p);
}

void batch_norm_channels(const BatchNormProblem& p) {
  for (const Tensor* t :
       {&p.y, &p.dx, &p.weight, &p.bias, &p.mean, &p.variance, &p.dweight, &p.dbias}) {
    WEFT_ASSERT(!t->defined() || t->is_contiguous());
  }
  p.dtype() == DType::f64 ? run<double>(p) : run<float>(p);
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
WEFT_HIGHWAY_VARIANT(batch_norm_cpu_channels, BatchNormProblem, batch_norm_channels)
#endif
