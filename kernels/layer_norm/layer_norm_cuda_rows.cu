// A warp per row with the row in its registers: rows of up to 3072 elements are read once, and the
// variance takes its own pass over the registers. Memory-bound.
//
// dgamma and dbeta take two steps without atomics: a persistent grid of blocks sums its rows into
// one partial row each, held per thread for fixed columns; a second kernel adds the partial rows in
// order, in f64. The number of blocks depends on the number of rows alone.
#include "core/stream.h"
#include "kernels/copy/copy.h"
#include "kernels/device/rows.cuh"
#include "kernels/layer_norm/layer_norm.h"

namespace weft::kernels {
namespace {

struct LayerNormRows {
  RowElements x, residual, sum, y, dy, ds, dx;
  Numbers gamma, beta, mean, rstd;
  int64_t rows, n;
  double eps;
};

/// A value as the tensor keeps it.
template <class Acc>
__device__ __forceinline__ Acc rounded_to(Acc x, DType dtype) {
  if (dtype == DType::bf16) return static_cast<Acc>(widen(narrow<bf16>(static_cast<float>(x))));
  if (dtype == DType::f16) return static_cast<Acc>(widen(narrow<f16>(static_cast<float>(x))));
  return x;
}

template <class Acc, int kVector, int kSteps>
__global__ void __launch_bounds__(kWarp* kRowWarps) layer_norm_kernel(LayerNormRows p) {
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kRowWarps;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Acc count = static_cast<Acc>(p.n);
  WarpRow<Acc, kVector, kSteps> s;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
       row < p.rows; row += warps) {
    s.read(p.x, row, p.n);
    if (p.residual) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int64_t column = static_cast<int64_t>(step * kWarp + lane) * kVector;
        if (column >= p.n) continue;
        Acc r[kVector];
        load(p.residual.elements, row * p.residual.stride + column, r);
#pragma unroll
        for (int k = 0; k < kVector; ++k) s.values[step][k] += r[k];
        store(p.sum.elements, row * p.sum.stride + column, s.values[step]);
        // What backward will see is normalised.
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          s.values[step][k] = rounded_to(s.values[step][k], p.sum.elements.dtype);
        }
      }
    }
    const Acc mean = s.sum(p.n, [](Acc& v, int64_t) { return v; }) / count;
    const Acc squares = s.sum(p.n, [&](Acc& v, int64_t) { return (v - mean) * (v - mean); });
    const Acc rstd = 1 / std::sqrt(squares / count + static_cast<Acc>(p.eps));
    if (p.mean && lane == 0) {
      store_one(p.mean, row, mean);
      store_one(p.rstd, row, rstd);
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int64_t column = static_cast<int64_t>(step * kWarp + lane) * kVector;
      if (column >= p.n) continue;
      Acc out[kVector];
#pragma unroll
      for (int k = 0; k < kVector; ++k) out[k] = (s.values[step][k] - mean) * rstd;
      if (p.gamma) {
        Acc gamma[kVector];
        load(p.gamma, column, gamma);
#pragma unroll
        for (int k = 0; k < kVector; ++k) out[k] *= gamma[k];
      }
      if (p.beta) {
        Acc beta[kVector];
        load(p.beta, column, beta);
#pragma unroll
        for (int k = 0; k < kVector; ++k) out[k] += beta[k];
      }
      store(p.y.elements, row * p.y.stride + column, out);
    }
  }
}

template <class Acc, int kVector, int kSteps>
__global__ void __launch_bounds__(kWarp* kRowWarps) layer_norm_dx_kernel(LayerNormRows p) {
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kRowWarps;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Acc count = static_cast<Acc>(p.n);
  WarpRow<Acc, kVector, kSteps> h, g;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
       row < p.rows; row += warps) {
    const Acc mean = load_one<Acc>(p.mean, row), rstd = load_one<Acc>(p.rstd, row);
    h.read(p.x, row, p.n);
    g.read(p.dy, row, p.n);
    Acc sum_g = 0, sum_gh = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int64_t column = static_cast<int64_t>(step * kWarp + lane) * kVector;
      if (column >= p.n) continue;
      if (p.gamma) {
        Acc gamma[kVector];
        load(p.gamma, column, gamma);
#pragma unroll
        for (int k = 0; k < kVector; ++k) g.values[step][k] *= gamma[k];
      }
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        h.values[step][k] = (h.values[step][k] - mean) * rstd;
        sum_g += g.values[step][k];
        sum_gh += g.values[step][k] * h.values[step][k];
      }
    }
    const Acc mean_g = warp_sum(sum_g) / count, mean_gh = warp_sum(sum_gh) / count;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int64_t column = static_cast<int64_t>(step * kWarp + lane) * kVector;
      if (column >= p.n) continue;
      Acc out[kVector];
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        out[k] = rstd * (g.values[step][k] - mean_g - h.values[step][k] * mean_gh);
      }
      if (p.ds) {
        Acc ds[kVector];
        load(p.ds.elements, row * p.ds.stride + column, ds);
#pragma unroll
        for (int k = 0; k < kVector; ++k) out[k] += ds[k];
      }
      store(p.dx.elements, row * p.dx.stride + column, out);
    }
  }
}

/// Rows of any length, forward and dx: a block per row that reads it as often as it needs.
constexpr int kThreads = 256;

template <class Acc>
__global__ void __launch_bounds__(kThreads) layer_norm_long_kernel(LayerNormRows p) {
  const Acc count = static_cast<Acc>(p.n);
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const auto at = [&](const RowElements& t, int64_t i) {
      return load_one<Acc>(t.elements, row * t.stride + i);
    };
    if (p.dx) {
      const Acc mean = load_one<Acc>(p.mean, row), rstd = load_one<Acc>(p.rstd, row);
      const auto g = [&](int64_t i) {
        return at(p.dy, i) * (p.gamma ? load_one<Acc>(p.gamma, i) : Acc{1});
      };
      Acc sum_g = 0, sum_gh = 0;
      for (int64_t i = threadIdx.x; i < p.n; i += kThreads) {
        sum_g += g(i);
        sum_gh += g(i) * ((at(p.x, i) - mean) * rstd);
      }
      const Acc mean_g = block_sum<kThreads>(sum_g) / count;
      const Acc mean_gh = block_sum<kThreads>(sum_gh) / count;
      for (int64_t i = threadIdx.x; i < p.n; i += kThreads) {
        const Acc h = (at(p.x, i) - mean) * rstd;
        const Acc dx = rstd * (g(i) - mean_g - h * mean_gh);
        store_one(p.dx.elements, row * p.dx.stride + i, p.ds ? dx + at(p.ds, i) : dx);
      }
      continue;
    }
    const auto s = [&](int64_t i) {
      if (!p.residual) return at(p.x, i);
      return rounded_to(at(p.x, i) + at(p.residual, i), p.sum.elements.dtype);
    };
    Acc total = 0, squares = 0;
    for (int64_t i = threadIdx.x; i < p.n; i += kThreads) total += s(i);
    const Acc mean = block_sum<kThreads>(total) / count;
    for (int64_t i = threadIdx.x; i < p.n; i += kThreads) squares += (s(i) - mean) * (s(i) - mean);
    const Acc rstd = 1 / std::sqrt(block_sum<kThreads>(squares) / count + static_cast<Acc>(p.eps));
    if (p.mean && threadIdx.x == 0) {
      store_one(p.mean, row, mean);
      store_one(p.rstd, row, rstd);
    }
    for (int64_t i = threadIdx.x; i < p.n; i += kThreads) {
      // y may be x's memory: s first.
      const Acc v = s(i);
      if (p.residual) store_one(p.sum.elements, row * p.sum.stride + i, v);
      Acc out = (v - mean) * rstd;
      if (p.gamma) out *= load_one<Acc>(p.gamma, i);
      if (p.beta) out += load_one<Acc>(p.beta, i);
      store_one(p.y.elements, row * p.y.stride + i, out);
    }
  }
}

/// Block (c, b) sums dy h and dy over the rows b, b + blocks, ... for 32 columns; its 8 warps take
/// every eighth of them, and are joined in order.
constexpr int kColumnWarps = 8;

struct LayerNormColumns {
  RowElements x, dy;
  Numbers mean, rstd;
  double* partial;  // [2, blocks, n]
  int64_t rows, n;
};

template <class Acc>
__global__ void __launch_bounds__(kWarp* kColumnWarps)
    layer_norm_columns_kernel(LayerNormColumns p) {
  WEFT_SHARED(Acc, joined, [2][kColumnWarps][kWarp]);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  Acc dgamma = 0, dbeta = 0;
  if (column < p.n) {
    for (int64_t row = static_cast<int64_t>(blockIdx.y) * kColumnWarps + warp; row < p.rows;
         row += static_cast<int64_t>(gridDim.y) * kColumnWarps) {
      const Acc dy = load_one<Acc>(p.dy.elements, row * p.dy.stride + column);
      const Acc x = load_one<Acc>(p.x.elements, row * p.x.stride + column);
      const Acc mean = load_one<Acc>(p.mean, row), rstd = load_one<Acc>(p.rstd, row);
      dgamma += dy * ((x - mean) * rstd);
      dbeta += dy;
    }
  }
  joined[0][warp][lane] = dgamma;
  joined[1][warp][lane] = dbeta;
  __syncthreads();
  if (warp == 0 && column < p.n) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      double total = 0;
      for (int w = 0; w < kColumnWarps; ++w) total += static_cast<double>(joined[which][w][lane]);
      p.partial[(which * static_cast<int64_t>(gridDim.y) + blockIdx.y) * p.n + column] = total;
    }
  }
}

/// Thread i of row `which` of the grid adds column i of the partial rows.
__global__ void __launch_bounds__(kThreads)
    layer_norm_join_kernel(const double* partial, int64_t blocks, int64_t n, Elements dgamma,
                           Elements dbeta) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const Elements& out = blockIdx.y == 0 ? dgamma : dbeta;
  if (column >= n || !out) return;
  double total = 0;
  for (int64_t b = 0; b < blocks; ++b) total += partial[(blockIdx.y * blocks + b) * n + column];
  store_one(out, column, total);
}

/// Rows of f32 arithmetic that fit registers; false for others.
bool run_in_registers(const LayerNormRows& p, bool vectors, runtime::StreamHandle stream) {
  if (p.dx && p.n > kMostForTwoRows * kWarp) return false;
  return with_row_tile(p.n, vectors, [&](auto vector, auto steps) {
    constexpr int kVector = decltype(vector)::value, kSteps = decltype(steps)::value;
    const unsigned grid = blocks_for(p.rows, kRowWarps);
    if (p.dx) {
      // Two rows in registers.
      if constexpr (kVector * kSteps <= kMostForTwoRows) {
        WEFT_LAUNCH((layer_norm_dx_kernel<float, kVector, kSteps>), grid, kWarp * kRowWarps, 0,
                    stream, p);
      }
    } else {
      WEFT_LAUNCH((layer_norm_kernel<float, kVector, kSteps>), grid, kWarp * kRowWarps, 0, stream,
                  p);
    }
  });
}

template <class Acc>
void run_long(const LayerNormRows& p, runtime::StreamHandle stream) {
  WEFT_LAUNCH(layer_norm_long_kernel<Acc>, blocks_for(p.rows, 1), kThreads, 0, stream, p);
}

template <class Acc>
void run_columns(const LayerNormRows& rows, const Elements& dgamma, const Elements& dbeta,
                 Device device, runtime::StreamHandle stream) {
  // About 64 rows for each block's warp, and enough blocks for any GPU where there are many rows.
  const int64_t blocks = std::clamp<int64_t>(rows.rows / (8 * kColumnWarps), 1, 64);
  const Tensor partial = Tensor::empty({2, blocks, rows.n}, DType::f64, device);
  const LayerNormColumns p{rows.x,    rows.dy, rows.mean, rows.rstd, partial.data<double>(),
                           rows.rows, rows.n};
  const dim3 grid(static_cast<unsigned>((rows.n + kWarp - 1) / kWarp),
                  static_cast<unsigned>(blocks));
  WEFT_LAUNCH(layer_norm_columns_kernel<Acc>, grid, kWarp * kColumnWarps, 0, stream, p);
  const dim3 join_grid(static_cast<unsigned>((rows.n + kThreads - 1) / kThreads), 2);
  WEFT_LAUNCH(layer_norm_join_kernel, join_grid, kThreads, 0, stream, partial.data<double>(),
              blocks, rows.n, dgamma, dbeta);
}

}  // namespace

void layer_norm_cuda_rows(const LayerNormProblem& p) {
  const int64_t n = p.x.shape().back();
  // Layouts that are not dense pass through copies.
  const auto dense = [](const Tensor& t) { return t.defined() ? contiguous(t) : t; };
  const auto target = [](const Tensor& t) {
    return !t.defined() || t.is_contiguous() ? t : Tensor::empty(t.shape(), t.dtype(), t.device());
  };
  const Tensor x = dense(p.x), residual = dense(p.residual), dy = dense(p.dy), ds = dense(p.ds);
  const Tensor gamma = dense(p.gamma), beta = dense(p.beta);
  const Tensor sum = target(p.sum), y = target(p.y), dx = target(p.dx);
  const Tensor mean = p.backward() ? dense(p.mean) : target(p.mean);
  const Tensor rstd = p.backward() ? dense(p.rstd) : target(p.rstd);
  const Tensor dgamma = target(p.dgamma), dbeta = target(p.dbeta);
  const LayerNormRows rows{RowElements(x, n),
                           RowElements(residual, n),
                           RowElements(sum, n),
                           RowElements(y, n),
                           RowElements(dy, n),
                           RowElements(ds, n),
                           RowElements(dx, n),
                           Numbers(gamma),
                           Numbers(beta),
                           Numbers(mean),
                           Numbers(rstd),
                           p.x.numel() / n,
                           n,
                           p.eps};
  const bool vectors = rows_fit_vectors(n, {x, residual, sum, y, dy, ds, dx, gamma, beta});
  const bool wide = p.dtype() == DType::f64;
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  if (rows.rows > 0 && (!p.backward() || dx.defined())) {
    if (wide) {
      run_long<double>(rows, stream);  // for checking gradients
    } else if (!run_in_registers(rows, vectors, stream)) {
      run_long<float>(rows, stream);
    }
  }
  if (dgamma.defined() || dbeta.defined()) {
    const Elements gamma_out(dgamma), beta_out(dbeta);
    wide ? run_columns<double>(rows, gamma_out, beta_out, p.device(), stream)
         : run_columns<float>(rows, gamma_out, beta_out, p.device(), stream);
  }
  const auto bring = [](const Tensor& from, const Tensor& to) {
    if (to.defined() && !from.is_same(to)) copy({.x = from, .y = to});
  };
  bring(sum, p.sum);
  bring(y, p.y);
  bring(dx, p.dx);
  if (!p.backward()) {
    bring(mean, p.mean);
    bring(rstd, p.rstd);
  }
  bring(dgamma, p.dgamma);
  bring(dbeta, p.dbeta);
}

}  // namespace weft::kernels
