// A warp per row with the row in its registers: rows of up to 3072 elements (1024 backward) are
// read once, and the variance takes its own pass over the registers. Memory-bound.
//
// dgamma and dbeta take two steps without atomics: each block of a grid that walks over the rows
// sums its own into one partial row, in the pass that makes dx or, for long rows and f64, in one of
// its own; a second kernel adds the partial rows in order, in f64. The number of blocks depends on
// the number of rows alone.
#include "core/stream.h"
#include "kernels/copy/copy.h"
#include "kernels/device/columns.cuh"
#include "kernels/device/instances.h"
#include "kernels/device/rows.cuh"
#include "kernels/layer_norm/layer_norm.h"

namespace weft::kernels {
namespace {

struct LayerNormRows {
  RowElements x, residual, sum, y, dy, ds, dx, dresidual;
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

/// WarpRow::read with all loads of vectors under way before the first is waited for, as three rows
/// at a time want it: what needs no conversion is loaded to its place, the rest is converted at the
/// end.
template <class T, class Acc, int kVector, int kSteps>
__device__ __forceinline__ void read_as(WarpRow<Acc, kVector, kSteps>& to, const RowElements& from,
                                        int64_t row, int64_t n) {
  static_assert(sizeof(T) * kVector == 16);
  Pack<T, kVector> packs[kSteps];
  const T* const first = static_cast<const T*>(from.elements.data) + row * from.stride;
  to.for_each_step(n, [&](int step, int64_t column) {
    packs[step] = *reinterpret_cast<const Pack<T, kVector>*>(first + column);
  });
  to.for_each_step(n, [&](int step, int64_t) {
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      to.values[step][k] = elements::to_arithmetic<T, Acc>(packs[step].values[k]);
    }
  });
}

template <class Acc, int kVector, int kSteps>
__device__ __forceinline__ void read_at_once(WarpRow<Acc, kVector, kSteps>& to,
                                             const RowElements& from, int64_t row, int64_t n) {
  if constexpr (kVector == 8) {
    if (from.elements.dtype == DType::bf16) return read_as<bf16>(to, from, row, n);
    if (from.elements.dtype == DType::f16) return read_as<f16>(to, from, row, n);
    to.for_each_step(n, [&](int step, int64_t column) {
      const int64_t at = row * from.stride + column;
      elements::load_as<Acc, kVector>(from.elements.data, at, to.values[step]);
    });
  } else {
    to.read(from, row, n);
  }
}

/// Partial rows [2, blocks, n] of dgamma and of dbeta.
template <class Acc>
struct PartialColumns {
  Acc* sums = nullptr;  // null: nobody asked

  __device__ Acc* of_block(int which, int64_t block, int64_t blocks, int64_t n) const {
    return sums + (which * blocks + block) * n;
  }
};

/// Blocks that sum rows: as many as a large GPU's multiprocessors hold. More of them would balance
/// better, and write and join more partial rows: 1188 for 25,216 rows of 768 took 130 us of an
/// H100, where the rows' bytes take 103.
constexpr int64_t kMostSummingBlocks = 132 * 3;

/// dx, where it is asked for, and this block's part of dgamma and dbeta, in one pass over x, dy and
/// ds. What a warp sums of its rows waits in shared memory, each lane's columns for it alone: in
/// registers, beside three rows, it would spill.
template <class Acc, int kVector, int kSteps>
__global__ void __launch_bounds__(kRowThreads, kVector* kSteps <= 24 ? 3 : 2)
    layer_norm_backward_kernel(LayerNormRows p, PartialColumns<Acc> partial) {
  using Row = WarpRow<Acc, kVector, kSteps>;
  WEFT_SHARED(Acc, sums, [2][kRowWarps][kVector * kSteps * kWarp]);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  Acc *const dgamma = sums[0][warp], *const dbeta = sums[1][warp];
  const Acc count = static_cast<Acc>(p.n);
  Row h, g, ds;
  Row::for_each_step(p.n, [&](int, int64_t column) {
    const Acc zeros[kVector] = {};
    elements::store_as<Acc>(dgamma, column, zeros);
    elements::store_as<Acc>(dbeta, column, zeros);
  });
  for_each_row(p.rows, [&](int64_t row) {
    const Acc mean = load_one<Acc>(p.mean, row), rstd = load_one<Acc>(p.rstd, row);
    read_at_once(h, p.x, row, p.n);
    if (p.ds) read_at_once(ds, p.ds, row, p.n);
    read_at_once(g, p.dy, row, p.n);
    Acc sum_g = 0, sum_gh = 0;
    Row::for_each_step(p.n, [&](int step, int64_t column) {
      typename Row::Vector &hs = h.values[step], &gs = g.values[step];
      Acc total[kVector];
      elements::load_as<Acc>(dgamma, column, total);
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        hs[k] = (hs[k] - mean) * rstd;
        total[k] += gs[k] * hs[k];
      }
      elements::store_as<Acc>(dgamma, column, total);
      elements::load_as<Acc>(dbeta, column, total);
#pragma unroll
      for (int k = 0; k < kVector; ++k) total[k] += gs[k];
      elements::store_as<Acc>(dbeta, column, total);
      join_vector(gs, p.gamma, column, [](Acc dy, Acc gamma) { return dy * gamma; });
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        sum_g += gs[k];
        sum_gh += gs[k] * hs[k];
      }
    });
    if (!p.dx) return;
    const Acc mean_g = warp_sum(sum_g) / count, mean_gh = warp_sum(sum_gh) / count;
    Row::for_each_step(p.n, [&](int step, int64_t column) {
      Acc out[kVector];
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        out[k] = rstd * (g.values[step][k] - mean_g - h.values[step][k] * mean_gh);
        if (p.ds) out[k] += ds.values[step][k];
      }
      store(p.dx.elements, row * p.dx.stride + column, out);
      if (p.dresidual) store(p.dresidual.elements, row * p.dresidual.stride + column, out);
    });
  });
  if (!partial.sums) return;
  __syncthreads();
  for (int64_t column = threadIdx.x; column < p.n; column += kRowThreads) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      Acc total = sums[which][0][column];
      for (int w = 1; w < kRowWarps; ++w) total += sums[which][w][column];
      partial.of_block(which, blockIdx.x, gridDim.x, p.n)[column] = total;
    }
  }
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
        Acc dx = rstd * (g(i) - mean_g - h(i) * mean_gh);
        if (p.ds) dx += p.ds.at<Acc>(row, i);
        p.dx.put(row, i, dx);
        if (p.dresidual) p.dresidual.put(row, i, dx);
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

template <class Acc>
__global__ void __launch_bounds__(kWarp* kColumnWarps)
    layer_norm_columns_kernel(LayerNormRows p, PartialColumns<Acc> partial) {
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
  if (warp >= 2 || column >= p.n) return;
  Acc total = 0;
  for (int w = 0; w < kColumnWarps; ++w) total += joined[warp][w][lane];
  partial.of_block(warp, blockIdx.y, gridDim.y, p.n)[column] = total;
}

constexpr int kJoinWarps = 32;

/// Row `which` of the grid adds the partial rows of dgamma or of dbeta, a block 32 columns.
template <class Acc>
__global__ void __launch_bounds__(kWarp* kJoinWarps)
    layer_norm_join_kernel(PartialColumns<Acc> partial, int64_t blocks, int64_t n, Elements dgamma,
                           Elements dbeta) {
  const int which = static_cast<int>(blockIdx.y);
  const Elements& out = which == 0 ? dgamma : dbeta;
  if (!out) return;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  const double total =
      sum_of_column<double, kJoinWarps>(partial.of_block(which, 0, blocks, n), blocks, n, column);
  if (threadIdx.y == 0 && column < n) store_one(out, column, total);
}

/// Forward, of rows of f32 arithmetic that fit registers; false for others.
bool run_in_registers(const LayerNormRows& p, bool vectors, runtime::StreamHandle stream) {
  return with_row_tile<kMostForOneRow>(p.n, vectors, [&](auto vector, auto steps) {
    WEFT_LAUNCH((layer_norm_kernel<float, vector(), steps()>), blocks_for(p.rows, kRowWarps),
                kRowThreads, 0, stream, p);
  });
}

template <class Acc>
void run_long(const LayerNormRows& p, runtime::StreamHandle stream) {
  if (p.rows == 0) return;
  WEFT_LAUNCH(layer_norm_long_kernel<Acc>, blocks_for(p.rows, 1), kLongRowThreads, 0, stream, p);
}

template <class Acc>
void run_backward(const LayerNormRows& p, bool vectors, const Elements& dgamma,
                  const Elements& dbeta, Device device, runtime::StreamHandle stream) {
  const bool sums = dgamma || dbeta;
  int64_t blocks = std::clamp<int64_t>((p.rows + kRowWarps - 1) / kRowWarps, 1, kMostSummingBlocks);
  Tensor memory;
  PartialColumns<Acc> partial;
  const auto make_partial = [&] {
    if (!sums) return;
    memory = Tensor::empty(Shape{2, blocks, p.n}, dtype_of<Acc>(), device);
    partial.sums = memory.template data<Acc>();
  };
  bool in_registers = false;
  if constexpr (std::is_same_v<Acc, float>) {  // f64: for checking gradients
    in_registers = with_row_tile<kMostForTwoRows>(p.n, vectors, [&](auto vector, auto steps) {
      make_partial();
      WEFT_LAUNCH((layer_norm_backward_kernel<Acc, vector(), steps()>),
                  static_cast<unsigned>(blocks), kRowThreads, 0, stream, p, partial);
    });
  }
  if (!in_registers) {
    if (sums) {
      // About 64 rows for each block's warp, and enough blocks for any GPU where rows are many.
      blocks = std::clamp<int64_t>(p.rows / (8 * kColumnWarps), 1, 64);
      make_partial();
      const dim3 grid(static_cast<unsigned>((p.n + kWarp - 1) / kWarp),
                      static_cast<unsigned>(blocks));
      WEFT_LAUNCH(layer_norm_columns_kernel<Acc>, grid, kWarp * kColumnWarps, 0, stream, p,
                  partial);
    }
    if (p.dx) run_long<Acc>(p, stream);  // after the columns of dy, whose memory dx may be
  }
  if (!sums) return;
  const dim3 grid(static_cast<unsigned>((p.n + kWarp - 1) / kWarp), 2);
  WEFT_LAUNCH(layer_norm_join_kernel<Acc>, grid, dim3(kWarp, kJoinWarps), 0, stream, partial,
              blocks, p.n, dgamma, dbeta);
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
  const Tensor dx = contiguous_output(p.dx), dresidual = contiguous_output(p.dresidual);
  const Tensor dgamma = contiguous_output(p.dgamma), dbeta = contiguous_output(p.dbeta);
  const LayerNormRows rows{.x = {x, n},
                           .residual = {residual, n},
                           .sum = {sum, n},
                           .y = {y, n},
                           .dy = {dy, n},
                           .ds = {ds, n},
                           .dx = {dx, n},
                           .dresidual = {dresidual, n},
                           .gamma = Numbers(gamma),
                           .beta = Numbers(beta),
                           .mean = Numbers(mean),
                           .rstd = Numbers(rstd),
                           .rows = p.x.numel() / n,
                           .n = n,
                           .eps = p.eps};
  const bool vectors =
      rows_fit_vectors(n, {x, residual, sum, y, dy, ds, dx, dresidual, gamma, beta});
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  with_arithmetic_zero(p.dtype(), [&]<class Acc>(Acc) {
    if (p.backward()) {
      run_backward<Acc>(rows, vectors, Elements(dgamma), Elements(dbeta), p.device(), stream);
    } else if (rows.rows > 0 &&
               (std::is_same_v<Acc, double> || !run_in_registers(rows, vectors, stream))) {
      run_long<Acc>(rows, stream);
    }
  });
  const std::pair<Tensor, Tensor> outputs[] = {{sum, p.sum},       {y, p.y},
                                               {dx, p.dx},         {dresidual, p.dresidual},
                                               {dgamma, p.dgamma}, {dbeta, p.dbeta}};
  for (const auto& [written, output] : outputs) finish_output(written, output);
  if (!p.backward()) {
    finish_output(mean, p.mean);
    finish_output(rstd, p.rstd);
  }
}

}  // namespace weft::kernels
