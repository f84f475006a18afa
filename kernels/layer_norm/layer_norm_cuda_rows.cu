// A warp per row with the row in its registers: rows of up to 3072 elements are read once, and the
// variance takes its own pass over the registers. Memory-bound.
//
// dgamma and dbeta take two steps without atomics: a persistent grid of blocks sums its rows into
// one partial row each, held per thread for fixed columns; a second kernel adds the partial rows in
// order, in f64. The number of blocks depends on the number of rows alone.
#include "core/stream.h"
#include "kernels/copy/copy.h"
#include "kernels/device/instances.h"
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

/// Blocks of an SM that ptxas keeps registers for: 10 are 48 registers, of which it takes 80 for 8
/// single elements when it may; 0 leaves it the choice.
constexpr int row_blocks(int vector, int steps) { return vector == 1 && steps == 8 ? 10 : 0; }

template <class Acc, int kVector, int kSteps>
__global__ void __launch_bounds__(kRowThreads, row_blocks(kVector, kSteps))
    layer_norm_kernel(LayerNormRows p) {
  using Row = WarpRow<Acc, kVector, kSteps>;
  const Acc count = static_cast<Acc>(p.n);
  Row s;
  for_each_row(p.rows, [&](int64_t row) {
    s.read(p.x, row, p.n);
    if (p.residual) {
      Row::for_each_step(p.n, [&](int step, int64_t column) {
        typename Row::Vector& v = s.values[step];
        Acc residual[kVector];
        load(p.residual.elements, row * p.residual.stride + column, residual);
#pragma unroll
        for (int k = 0; k < kVector; ++k) v[k] += residual[k];
        store(p.sum.elements, row * p.sum.stride + column, v);
        // What backward will see is normalised.
#pragma unroll
        for (int k = 0; k < kVector; ++k) v[k] = rounded_to(p.sum.elements.dtype, v[k]);
      });
    }
    const Acc mean = s.sum(p.n, [](Acc& v, int64_t) { return v; }) / count;
    const Acc squares = s.sum(p.n, [&](Acc& v, int64_t) { return (v - mean) * (v - mean); });
    const Acc rstd = 1 / std::sqrt(squares / count + static_cast<Acc>(p.eps));
    if (p.mean && threadIdx.x % kWarp == 0) {
      store_one(p.mean, row, mean);
      store_one(p.rstd, row, rstd);
    }
    Row::for_each_step(p.n, [&](int step, int64_t column) {
      Acc out[kVector];
#pragma unroll
      for (int k = 0; k < kVector; ++k) out[k] = (s.values[step][k] - mean) * rstd;
      join_vector(out, p.gamma, column, [](Acc h, Acc gamma) { return h * gamma; });
      join_vector(out, p.beta, column, [](Acc y, Acc beta) { return y + beta; });
      store(p.y.elements, row * p.y.stride + column, out);
    });
  });
}

template <class Acc, int kVector, int kSteps>
__global__ void __launch_bounds__(kRowThreads) layer_norm_dx_kernel(LayerNormRows p) {
  using Row = WarpRow<Acc, kVector, kSteps>;
  const Acc count = static_cast<Acc>(p.n);
  Row h, g;
  for_each_row(p.rows, [&](int64_t row) {
    const Acc mean = load_one<Acc>(p.mean, row), rstd = load_one<Acc>(p.rstd, row);
    h.read(p.x, row, p.n);
    g.read(p.dy, row, p.n);
    Acc sum_g = 0, sum_gh = 0;
    Row::for_each_step(p.n, [&](int step, int64_t column) {
      join_vector(g.values[step], p.gamma, column, [](Acc dy, Acc gamma) { return dy * gamma; });
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        h.values[step][k] = (h.values[step][k] - mean) * rstd;
        sum_g += g.values[step][k];
        sum_gh += g.values[step][k] * h.values[step][k];
      }
    });
    const Acc mean_g = warp_sum(sum_g) / count, mean_gh = warp_sum(sum_gh) / count;
    Row::for_each_step(p.n, [&](int step, int64_t column) {
      Acc out[kVector];
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        out[k] = rstd * (g.values[step][k] - mean_g - h.values[step][k] * mean_gh);
      }
      join_vector(out, p.ds.elements, row * p.ds.stride + column,
                  [](Acc dx, Acc ds) { return dx + ds; });
      store(p.dx.elements, row * p.dx.stride + column, out);
    });
  });
}

/// Rows of any length, forward and dx.
template <class Acc>
__global__ void __launch_bounds__(kLongRowThreads, 2) layer_norm_long_kernel(LayerNormRows p) {
  const Acc count = static_cast<Acc>(p.n);
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    if (p.dx) {
      const Acc mean = load_one<Acc>(p.mean, row), rstd = load_one<Acc>(p.rstd, row);
      const auto g = [&](int64_t i) {
        return p.dy.at<Acc>(row, i) * (p.gamma ? load_one<Acc>(p.gamma, i) : Acc{1});
      };
      const auto h = [&](int64_t i) { return (p.x.at<Acc>(row, i) - mean) * rstd; };
      Acc sum_g = 0, sum_gh = 0;
      for (int64_t i = threadIdx.x; i < p.n; i += kLongRowThreads) {
        sum_g += g(i);
        sum_gh += g(i) * h(i);
      }
      const Acc mean_g = block_sum<kLongRowThreads>(sum_g) / count;
      const Acc mean_gh = block_sum<kLongRowThreads>(sum_gh) / count;
      for (int64_t i = threadIdx.x; i < p.n; i += kLongRowThreads) {
        const Acc dx = rstd * (g(i) - mean_g - h(i) * mean_gh);
        p.dx.put(row, i, p.ds ? dx + p.ds.at<Acc>(row, i) : dx);
      }
      continue;
    }
    const auto s = [&](int64_t i) {
      const Acc x = p.x.at<Acc>(row, i);
      return p.residual ? rounded_to(p.sum.elements.dtype, x + p.residual.at<Acc>(row, i)) : x;
    };
    const Acc mean = long_row_sum<Acc>(p.n, s) / count;
    const Acc squares =
        long_row_sum<Acc>(p.n, [&](int64_t i) { return (s(i) - mean) * (s(i) - mean); });
    const Acc rstd = 1 / std::sqrt(squares / count + static_cast<Acc>(p.eps));
    if (p.mean && threadIdx.x == 0) {
      store_one(p.mean, row, mean);
      store_one(p.rstd, row, rstd);
    }
    for (int64_t i = threadIdx.x; i < p.n; i += kLongRowThreads) {
      // y may be x's memory: s first.
      const Acc v = s(i);
      if (p.residual) p.sum.put(row, i, v);
      Acc out = (v - mean) * rstd;
      if (p.gamma) out *= load_one<Acc>(p.gamma, i);
      if (p.beta) out += load_one<Acc>(p.beta, i);
      p.y.put(row, i, out);
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
      const Acc dy = p.dy.at<Acc>(row, column), x = p.x.at<Acc>(row, column);
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

constexpr int kJoinThreads = 256;

/// Thread i of row `which` of the grid adds column i of the partial rows.
__global__ void __launch_bounds__(kJoinThreads)
    layer_norm_join_kernel(const double* partial, int64_t blocks, int64_t n, Elements dgamma,
                           Elements dbeta) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kJoinThreads + threadIdx.x;
  const Elements& out = blockIdx.y == 0 ? dgamma : dbeta;
  if (column >= n || !out) return;
  double total = 0;
  for (int64_t b = 0; b < blocks; ++b) total += partial[(blockIdx.y * blocks + b) * n + column];
  store_one(out, column, total);
}

/// Rows of f32 arithmetic that fit registers; false for others.
bool run_in_registers(const LayerNormRows& p, bool vectors, runtime::StreamHandle stream) {
  const unsigned grid = blocks_for(p.rows, kRowWarps);
  if (p.dx) {
    return with_row_tile<kMostForTwoRows>(p.n, vectors, [&](auto vector, auto steps) {
      WEFT_LAUNCH((layer_norm_dx_kernel<float, vector(), steps()>), grid, kRowThreads, 0, stream,
                  p);
    });
  }
  return with_row_tile<kMostForOneRow>(p.n, vectors, [&](auto vector, auto steps) {
    WEFT_LAUNCH((layer_norm_kernel<float, vector(), steps()>), grid, kRowThreads, 0, stream, p);
  });
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
  const dim3 join_grid(static_cast<unsigned>((rows.n + kJoinThreads - 1) / kJoinThreads), 2);
  WEFT_LAUNCH(layer_norm_join_kernel, join_grid, kJoinThreads, 0, stream, partial.data<double>(),
              blocks, rows.n, dgamma, dbeta);
}

}  // namespace

void layer_norm_cuda_rows(const LayerNormProblem& p) {
  const int64_t n = p.x.shape().back();
  // Layouts that are not dense pass through copies.
  const auto dense = [](const Tensor& t) { return t.defined() ? contiguous(t) : t; };
  const auto statistic = [&](const Tensor& t) {
    return p.backward() ? dense(t) : contiguous_output(t);
  };
  const Tensor x = dense(p.x), residual = dense(p.residual), dy = dense(p.dy), ds = dense(p.ds);
  const Tensor gamma = dense(p.gamma), beta = dense(p.beta);
  const Tensor sum = contiguous_output(p.sum), y = contiguous_output(p.y);
  const Tensor mean = statistic(p.mean), rstd = statistic(p.rstd);
  const Tensor dx = contiguous_output(p.dx);
  const Tensor dgamma = contiguous_output(p.dgamma), dbeta = contiguous_output(p.dbeta);
  const LayerNormRows rows{.x = {x, n},
                           .residual = {residual, n},
                           .sum = {sum, n},
                           .y = {y, n},
                           .dy = {dy, n},
                           .ds = {ds, n},
                           .dx = {dx, n},
                           .gamma = Numbers(gamma),
                           .beta = Numbers(beta),
                           .mean = Numbers(mean),
                           .rstd = Numbers(rstd),
                           .rows = p.x.numel() / n,
                           .n = n,
                           .eps = p.eps};
  const bool vectors = rows_fit_vectors(n, {x, residual, sum, y, dy, ds, dx, gamma, beta});
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  if (rows.rows > 0 && (!p.backward() || dx.defined())) {
    // f64: for checking gradients.
    if (p.dtype() == DType::f64 || !run_in_registers(rows, vectors, stream)) {
      with_arithmetic_zero(p.dtype(), [&](auto zero) {
        WEFT_LAUNCH(layer_norm_long_kernel<decltype(zero)>, blocks_for(rows.rows, 1),
                    kLongRowThreads, 0, stream, rows);
      });
    }
  }
  if (dgamma.defined() || dbeta.defined()) {
    with_arithmetic_zero(p.dtype(), [&](auto zero) {
      run_columns<decltype(zero)>(rows, Elements(dgamma), Elements(dbeta), p.device(), stream);
    });
  }
  const std::pair<Tensor, Tensor> outputs[] = {
      {sum, p.sum}, {y, p.y}, {dx, p.dx}, {dgamma, p.dgamma}, {dbeta, p.dbeta}};
  for (const auto& [written, output] : outputs) finish_output(written, output);
  if (!p.backward()) {
    finish_output(mean, p.mean);
    finish_output(rstd, p.rstd);
  }
}

}  // namespace weft::kernels
