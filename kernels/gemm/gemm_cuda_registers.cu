// Rung 3, registers: each of 256 threads owns an 8 x 4 block of a 128 x 64 tile of C, so that 12
// loads from shared memory feed 32 multiply-adds. Tiles lie K-major, A's with its rows along the
// lanes' vectors. While the products of one tile run, the next tile's elements are on their way
// into registers, and two buffers let a single barrier per tile do.
//
// For f32 (and f16, bf16 and fp8 widened) without tensor cores; bound by the multiply-adds at large
// sizes. fp8 sums are in f32 throughout and need no promotion.
#include "kernels/device/instances.h"
#include "kernels/gemm/gemm_bias_gradient.cuh"

namespace weft::kernels {
namespace {

constexpr int kRows = 128, kCols = 64, kDepth = 16, kThreads = 256;
constexpr int kThreadRows = 8, kThreadCols = 4;

/// This thread's elements of a tile of rows of A (or columns of B) by kDepth, on their way from
/// global to shared memory. Neighbouring threads take neighbours along the dimension without gaps.
template <bool kOfA, bool kAlongDepth>
struct Transit {
  static constexpr int kSize = kOfA ? kRows : kCols, kCount = kSize * kDepth / kThreads;
  // The pad keeps 4-float vectors aligned and spreads a column of stores over the banks.
  using SharedTile = float[kDepth][kSize + 4];
  float values[kCount];

  /// The tile that begins at (at0, depth0) of a matrix; what lies outside is 0. Sizes and strides
  /// stay in the arguments' memory: those of both operands at once would cost registers.
  __device__ __forceinline__ void load(const GemmArguments& p, int64_t base, int64_t at0,
                                       int64_t depth0) {
    const GemmOperand& from = kOfA ? p.a : p.b;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int64_t at = at0 + at_of(i), depth = depth0 + depth_of(i);
      const int64_t row = kOfA ? at : depth, column = kOfA ? depth : at;
      const bool is_inside = at < (kOfA ? p.m : p.n) && depth < p.k;
      values[i] = is_inside
                      ? load_one<float>(from.elements, base + row * from.row + column * from.column)
                      : 0.0f;
    }
  }
  __device__ __forceinline__ void put(SharedTile& tile) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) tile[depth_of(i)][at_of(i)] = values[i];
  }

 private:
  static __device__ __forceinline__ int element(int i) {
    return static_cast<int>(threadIdx.x) + i * kThreads;
  }
  static __device__ __forceinline__ int at_of(int i) {
    return kAlongDepth ? element(i) / kDepth : element(i) % kSize;
  }
  static __device__ __forceinline__ int depth_of(int i) {
    return kAlongDepth ? element(i) % kDepth : element(i) / kSize;
  }
};

template <bool kADepth, bool kBDepth>
__global__ void __launch_bounds__(kThreads)
    gemm_registers_kernel(const __grid_constant__ GemmArguments p) {
  WEFT_SHARED(float, tile_a, [2][kDepth][kRows + 4]);
  WEFT_SHARED(float, tile_b, [2][kDepth][kCols + 4]);
  const BlockTile tile(p, kCols);
  const int64_t row0 = int64_t{tile.row} * kRows;
  const int64_t column0 = int64_t{tile.column} * kCols;
  const int thread_row = static_cast<int>(threadIdx.x) / (kCols / kThreadCols) * kThreadRows;
  const int thread_col = static_cast<int>(threadIdx.x) % (kCols / kThreadCols) * kThreadCols;
  for (int64_t batch = blockIdx.z; batch < p.batches; batch += gridDim.z) {
    const int64_t a = p.base(p.a, batch), b = p.base(p.b, batch);
    Transit<true, kADepth> next_a;
    Transit<false, kBDepth> next_b;
    const auto load = [&](int64_t depth0) {
      next_a.load(p, a, row0, depth0);
      next_b.load(p, b, column0, depth0);
    };
    const auto put = [&](int buffer) {
      next_a.put(tile_a[buffer]);
      next_b.put(tile_b[buffer]);
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
  if (finish_if_empty(problem)) return;
  const GemmArguments p(problem);
  const dim3 grid = tile_grid(p, kRows, kCols, p.batches);
  with_flags(
      [&](auto a_depth, auto b_depth) {
        WEFT_LAUNCH((gemm_registers_kernel<a_depth(), b_depth()>), grid, kThreads, 0,
                    current_stream_handle(problem.device()), p);
      },
      p.a.column == 1, p.b.row == 1);
  sum_columns<float>(problem, p);
}

}  // namespace weft::kernels
