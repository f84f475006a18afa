// A row at a time: widened to f32 (or f64) into buffers that stay in L1 unless it can be used where
// it lies, then the mean, the variance about that mean, and one pass that writes. Backward takes
// fixed chunks of rows: each row's two sums and its share of dgamma and dbeta in one pass, dx in a
// second; the chunks' shares are then added column by column. The limiter is memory.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/layer_norm/layer_norm_cpu_highway.cc"
#include "core/simd/targets_inl.h"

#include <hwy/aligned_allocator.h>
#include <cmath>

#include "core/parallel.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/simd/rows_inl.h"
#include "kernels/simd/variant.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

/// gamma or beta as Acc, or `otherwise` everywhere when absent.
template <class Acc>
std::vector<Acc> vector_or(const Tensor& t, int64_t n, Acc otherwise) {
  std::vector<Acc> buffer(n, otherwise);
  if (!t.defined()) return buffer;
  const Acc* const p = read_row(t.dtype(), t.raw(), 0, t.strides()[0], n, buffer.data());
  return std::vector<Acc>(p, p + n);
}

template <class Acc>
void forward(const LayerNormProblem& p, int64_t rows, int64_t n, int64_t grain) {
  const hn::ScalableTag<Acc> d;
  using V = hn::Vec<decltype(d)>;
  const Rows x(p.x), residual(p.residual), sum(p.sum), y(p.y);
  const Rows means = Rows::of_scalars(p.mean), rstds = Rows::of_scalars(p.rstd);
  const Acc count = static_cast<Acc>(n);
  const bool affine = p.gamma.defined() || p.beta.defined();
  const std::vector<Acc> gamma = vector_or<Acc>(p.gamma, n, 1), beta = vector_or<Acc>(p.beta, n, 0);
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) HWY_ATTR {
    const auto buffers = hwy::AllocateAligned<Acc>(3 * n);
    Acc* const x_buffer = buffers.get();
    Acc* const residual_buffer = buffers.get() + n;
    Acc* const out_buffer = buffers.get() + 2 * n;
    for (int64_t r = begin; r < end; ++r) {
      const Acc* s = x.read(r, n, x_buffer);
      if (residual) {
        Acc* const target = sum.target(r, out_buffer);
        const Acc* const other = residual.read(r, n, residual_buffer);
        for_each_vector(d, n, [&](size_t i, size_t m) HWY_ATTR {
          store_part(d, hn::Add(load_part(d, s + i, m), load_part(d, other + i, m)), target + i, m);
        });
        sum.write(r, target, n);
        s = sum.read(r, n, x_buffer);
      }
      const auto at = [&](size_t i, size_t m) HWY_ATTR { return load_part(d, s + i, m); };
      const Acc mean = sum_vectors(d, n, at) / count;
      const V vmean = hn::Set(d, mean);
      const Acc squares = sum_vectors(d, n, [&](size_t i, size_t m) HWY_ATTR {
        const V c = hn::Sub(at(i, m), vmean);
        return hn::Mul(c, c);
      });
      const Acc rstd = 1 / std::sqrt(squares / count + static_cast<Acc>(p.eps));
      if (means) {
        means.scalar<Acc>(r) = mean;
        rstds.scalar<Acc>(r) = rstd;
      }
      const V vrstd = hn::Set(d, rstd);
      Acc* const out = y.target(r, out_buffer);
      if (affine) {
        for_each_vector(d, n, [&](size_t i, size_t m) HWY_ATTR {
          const V h = hn::Mul(hn::Sub(at(i, m), vmean), vrstd);
          const V g = load_part(d, gamma.data() + i, m), b = load_part(d, beta.data() + i, m);
          store_part(d, hn::Add(hn::Mul(h, g), b), out + i, m);
        });
      } else {
        for_each_vector(d, n, [&](size_t i, size_t m) HWY_ATTR {
          store_part(d, hn::Mul(hn::Sub(at(i, m), vmean), vrstd), out + i, m);
        });
      }
      y.write(r, out, n);
    }
  });
}

template <class Acc>
void backward(const LayerNormProblem& p, int64_t rows, int64_t n) {
  const hn::ScalableTag<Acc> d;
  using V = hn::Vec<decltype(d)>;
  const Rows x(p.x), dy(p.dy), ds(p.ds), dx(p.dx), dresidual(p.dresidual);
  const Rows means = Rows::of_scalars(p.mean), rstds = Rows::of_scalars(p.rstd);
  const std::vector<Acc> gamma = vector_or<Acc>(p.gamma, n, 1);
  const bool with_affine = p.dgamma.defined() || p.dbeta.defined();
  // At most 64 chunks: the shares stay small beside dy, and there is work for as many threads.
  const int64_t grain = std::max<int64_t>(16, (rows + 63) / 64);
  const int64_t chunks = (rows + grain - 1) / grain;
  const Tensor shares = with_affine ? Tensor::empty({chunks, 2, n}, dtype_of<Acc>()) : Tensor();
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) HWY_ATTR {
    const auto buffers = hwy::AllocateAligned<Acc>(4 * n);
    Acc* const x_buffer = buffers.get();
    Acc* const dy_buffer = buffers.get() + n;
    Acc* const ds_buffer = buffers.get() + 2 * n;
    Acc* const dx_buffer = buffers.get() + 3 * n;
    Acc* const dgamma = with_affine ? shares.data<Acc>() + begin / grain * 2 * n : nullptr;
    Acc* const dbeta = with_affine ? dgamma + n : nullptr;
    if (with_affine) std::fill_n(dgamma, 2 * n, Acc{0});
    for (int64_t r = begin; r < end; ++r) {
      const Acc* const s = x.read(r, n, x_buffer);
      const Acc* const g_out = dy.read(r, n, dy_buffer);
      const V mean = hn::Set(d, means.scalar<Acc>(r)), rstd = hn::Set(d, rstds.scalar<Acc>(r));
      const Acc count = static_cast<Acc>(n);
      Acc sum_gh = 0;
      const auto normalised = [&](size_t i, size_t m) HWY_ATTR {
        return hn::Mul(hn::Sub(load_part(d, s + i, m), mean), rstd);
      };
      const Acc sum_g = sum_vectors(d, n, [&](size_t i, size_t m) HWY_ATTR {
        return hn::Mul(load_part(d, g_out + i, m), load_part(d, gamma.data() + i, m));
      });
      if (with_affine) {
        sum_gh = sum_vectors(d, n, [&](size_t i, size_t m) HWY_ATTR {
          const V go = load_part(d, g_out + i, m);
          const V goh = hn::Mul(go, normalised(i, m));
          store_part(d, hn::Add(load_part(d, dgamma + i, m), goh), dgamma + i, m);
          store_part(d, hn::Add(load_part(d, dbeta + i, m), go), dbeta + i, m);
          return hn::Mul(goh, load_part(d, gamma.data() + i, m));
        });
      } else {
        sum_gh = sum_vectors(d, n, [&](size_t i, size_t m) HWY_ATTR {
          const V g = hn::Mul(load_part(d, g_out + i, m), load_part(d, gamma.data() + i, m));
          return hn::Mul(g, normalised(i, m));
        });
      }
      if (!dx) continue;
      const V mean_g = hn::Set(d, sum_g / count), mean_gh = hn::Set(d, sum_gh / count);
      const Acc* const incoming = ds ? ds.read(r, n, ds_buffer) : nullptr;
      Acc* const out = dx.target(r, dx_buffer);
      for_each_vector(d, n, [&](size_t i, size_t m) HWY_ATTR {
        const V g = hn::Mul(load_part(d, g_out + i, m), load_part(d, gamma.data() + i, m));
        const V centred = hn::Sub(hn::Sub(g, mean_g), hn::Mul(normalised(i, m), mean_gh));
        const V v = hn::Mul(rstd, centred);
        store_part(d, incoming ? hn::Add(v, load_part(d, incoming + i, m)) : v, out + i, m);
      });
      dx.write(r, out, n);
      if (dresidual) dresidual.write(r, out, n);
    }
  });
  if (!with_affine) return;
  const auto join = [&](const Tensor& out, int64_t which) {
    if (!out.defined()) return;
    parallel_for(n, 512, [&](int64_t begin, int64_t end) HWY_ATTR {
      double total[512] = {};
      Acc row[512];
      for (int64_t c = 0; c < chunks; ++c) {
        const Acc* share = shares.data<Acc>() + (2 * c + which) * n + begin;
        for (int64_t i = 0; i < end - begin; ++i) total[i] += share[i];
      }
      for (int64_t i = 0; i < end - begin; ++i) row[i] = static_cast<Acc>(total[i]);
      const int64_t stride = out.strides()[0];
      write_row(row, end - begin, out.dtype(), out.raw(), begin * stride, stride);
    });
  };
  join(p.dgamma, 0);
  join(p.dbeta, 1);
}

void layer_norm_rows(const LayerNormProblem& p) {
  const int64_t n = p.x.shape().back();
  WEFT_ASSERT(n > 0);
  const int64_t rows = p.x.numel() / n;
  const int64_t grain = std::max<int64_t>(1, 16384 / n);
  const auto run = [&]<class Acc>(Acc) {
    p.backward() ? backward<Acc>(p, rows, n) : forward<Acc>(p, rows, n, grain);
  };
  p.dtype() == DType::f64 ? run(0.0) : run(0.0f);
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
WEFT_HIGHWAY_VARIANT(layer_norm_cpu_highway, LayerNormProblem, layer_norm_rows)
#endif
