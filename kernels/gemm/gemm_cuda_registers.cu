// Rung 3, registers: each of 256 threads owns an 8 x 4 block of a 128 x 64 tile of C, so that 12
// loads from shared memory feed 32 multiply-adds. Tiles lie K-major, A's with its rows along the
// lanes' vectors. While the products of one tile run, the next tile's elements are on their way
// into registers, and two buffers let a single barrier per tile do.
//
// For f32 (and f16, bf16 and fp8 widened) without tensor cores; bound by the multiply-adds at large
// sizes. fp8 sums are in f32 throughout and need no promotion.
#include "core/stream.h"
#include "kernels/gemm/gemm_bias_gradient.cuh"

namespace weft::kernels {
namespace {

constexpr int kRows = 128, kCols = 64, kDepth = 16, kThreads = 256;
constexpr int kThreadRows = 8, kThreadCols = 4;
constexpr int kLoadsA = kRows * kDepth / kThreads, kLoadsB = kCols * kDepth / kThreads;

/// Which way neighbouring threads walk when they load: along the dimension without gaps.
template <bool kAlongDepth, int kSize>
__device__ __forceinline__ void tile_position(int i, int& at, int& depth) {
  const int e = static_cast<int>(threadIdx.x) + i * kThreads;
  if (kAlongDepth) {
    depth = e % kDepth;
    at = e / kDepth;
  } else {
    at = e % kSize;
    depth = e / kSize;
  }
}

template <bool kADepth, bool kBDepth>
__global__ void __launch_bounds__(kThreads)
    gemm_registers_kernel(const __grid_constant__ GemmArguments p) {
  // The pad keeps 4-float vectors aligned and spreads a column of stores over the banks.
  WEFT_SHARED(float, tile_a, [2][kDepth][kRows + 4]);
  WEFT_SHARED(float, tile_b, [2][kDepth][kCols + 4]);
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kRows;
  const int64_t column0 = static_cast<int64_t>(blockIdx.x) * kCols;
  const int thread_row = static_cast<int>(threadIdx.x) / (kCols / kThreadCols) * kThreadRows;
  const int thread_col = static_cast<int>(threadIdx.x) % (kCols / kThreadCols) * kThreadCols;
  for (int64_t batch = blockIdx.z; batch < p.batches; batch += gridDim.z) {
    const int64_t a = p.base(p.a, batch), b = p.base(p.b, batch);
    float next_a[kLoadsA], next_b[kLoadsB];
    const auto load = [&](int64_t depth0) {
#pragma unroll
      for (int i = 0; i < kLoadsA; ++i) {
        int row, depth;
        tile_position<kADepth, kRows>(i, row, depth);
        next_a[i] = row0 + row < p.m && depth0 + depth < p.k
                        ? load_one<float>(p.a.elements, a + (row0 + row) * p.a.row +
                                                            (depth0 + depth) * p.a.column)
                        : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kLoadsB; ++i) {
        int col, depth;
        tile_position<kBDepth, kCols>(i, col, depth);
        next_b[i] = column0 + col < p.n && depth0 + depth < p.k
                        ? load_one<float>(p.b.elements, b + (depth0 + depth) * p.b.row +
                                                            (column0 + col) * p.b.column)
                        : 0.0f;
      }
    };
    const auto put = [&](int buffer) {
#pragma unroll
      for (int i = 0; i < kLoadsA; ++i) {
        int row, depth;
        tile_position<kADepth, kRows>(i, row, depth);
        tile_a[buffer][depth][row] = next_a[i];
      }
#pragma unroll
      for (int i = 0; i < kLoadsB; ++i) {
        int col, depth;
        tile_position<kBDepth, kCols>(i, col, depth);
        tile_b[buffer][depth][col] = next_b[i];
      }
    };
    float sums[kThreadRows][kThreadCols] = {};
    load(0);
    put(0);
    __syncthreads();
    int buffer = 0;
    for (int64_t depth0 = 0; depth0 < p.k; depth0 += kDepth) {
      const bool has_next = depth0 + kDepth < p.k;
      if (has_next) load(depth0 + kDepth);
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        float x[kThreadRows], y[kThreadCols];
#pragma unroll
        for (int i = 0; i < kThreadRows; ++i) x[i] = tile_a[buffer][d][thread_row + i];
#pragma unroll
        for (int j = 0; j < kThreadCols; ++j) y[j] = tile_b[buffer][d][thread_col + j];
#pragma unroll
        for (int i = 0; i < kThreadRows; ++i) {
#pragma unroll
          for (int j = 0; j < kThreadCols; ++j) sums[i][j] = std::fma(x[i], y[j], sums[i][j]);
        }
      }
      // The other buffer was last read before the last barrier.
      if (has_next) put(buffer ^ 1);
      __syncthreads();
      buffer ^= 1;
    }
    const GemmArguments::Output to = p.output(batch);
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
#pragma unroll
      for (int j = 0; j < kThreadCols; ++j) {
        const int64_t row = row0 + thread_row + i, column = column0 + thread_col + j;
        if (row < p.m && column < p.n) p.finish(to, row, column, sums[i][j]);
      }
    }
  }
}

}  // namespace

void gemm_cuda_registers(const GemmProblem& problem) {
  if (gemm_is_empty(problem)) return;
  const GemmArguments p(problem);
  const dim3 grid(tiles(p.n, kCols), tiles(p.m, kRows), grid_batches(p.batches));
  const runtime::StreamHandle stream = current_stream_handle(problem.device());
  const bool a_depth = p.a.column == 1, b_depth = p.b.row == 1;
  if (a_depth && b_depth) {
    WEFT_LAUNCH((gemm_registers_kernel<true, true>), grid, kThreads, 0, stream, p);
  } else if (a_depth) {
    WEFT_LAUNCH((gemm_registers_kernel<true, false>), grid, kThreads, 0, stream, p);
  } else if (b_depth) {
    WEFT_LAUNCH((gemm_registers_kernel<false, true>), grid, kThreads, 0, stream, p);
  } else {
    WEFT_LAUNCH((gemm_registers_kernel<false, false>), grid, kThreads, 0, stream, p);
  }
  sum_columns<float>(problem, p);
}

}  // namespace weft::kernels
