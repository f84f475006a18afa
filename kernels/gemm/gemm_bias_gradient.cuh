// The gradient of a bias: the sums of C's columns, in two stages and a fixed order. First groups of
// rows, by the kernel that made C, which has them in registers, or by a pass over C; then the
// groups. No atomics: the same bits in every run.
#pragma once

#include "core/stream.h"
#include "kernels/device/columns.cuh"
#include "kernels/device/warp.cuh"
#include "kernels/gemm/gemm_cuda.cuh"

namespace weft::kernels {

/// Sums of groups of rows: [groups, n], f32 (f64 for f64).
template <class Acc>
struct ColumnPartials {
  Acc* sums = nullptr;  // null: nobody asked

  __device__ explicit operator bool() const { return sums != nullptr; }
  __device__ Acc& at(const GemmArguments& p, int64_t group, int64_t column) const {
    return sums[group * p.n + column];
  }
};

namespace bias_gradient {

constexpr int kLanes = 32, kThreads = 256;
constexpr int kGroupRows = 64;

/// A thread for each column of a group of rows of one matrix, one group per block along y and on.
template <class Acc>
__global__ static void __launch_bounds__(kThreads)
    column_partials_kernel(const __grid_constant__ GemmArguments p, ColumnPartials<Acc> partials,
                           int groups_of_matrix, int groups) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= p.n) return;
  for (int group = static_cast<int>(blockIdx.y); group < groups;
       group += static_cast<int>(gridDim.y)) {
    const int64_t row0 = int64_t{group % groups_of_matrix} * kGroupRows;
    const int64_t rows = min(int64_t{kGroupRows}, p.m - row0);
    int64_t at = p.base(p.c, group / groups_of_matrix) + row0 * p.c.row + column * p.c.column;
    Acc sum = 0;
    for (int64_t r = 0; r < rows; ++r, at += p.c.row) sum += load_one<Acc>(p.c.elements, at);
    partials.at(p, group, column) = sum;
  }
}

/// A block joins 32 columns.
template <class Acc>
__global__ static void __launch_bounds__(kLanes* kLanes)
    join_columns_kernel(const __grid_constant__ GemmArguments p, ColumnPartials<Acc> partials,
                        int64_t groups, Acc* total) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x;
  const Acc sum = sum_of_column<Acc, kLanes>(partials.sums, groups, p.n, column);
  if (threadIdx.y == 0 && column < p.n) total[column] = sum;
}

}  // namespace bias_gradient

/// Stores a warp's sums of 8 columns from `column` on, whose threads hold theirs as mma's and
/// wgmma's accumulators do: lanes of equal lane % 4 the same two columns of different rows.
__device__ __forceinline__ void put_column_sums(const ColumnPartials<float>& partials,
                                                const GemmArguments& p, int64_t group,
                                                int64_t column, const float (&sums)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    float sum = sums[e];
#pragma unroll
    for (int distance = 16; distance >= 4; distance /= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, distance);
    }
    const int64_t at = column + 2 * (lane % 4) + e;
    if (lane < 4 && at < p.n) partials.at(p, group, at) = sum;
  }
}

/// problem.bias_gradient from the groups' sums.
template <class Acc>
void join_columns(const GemmProblem& problem, const GemmArguments& p, const Tensor& partials) {
  using namespace bias_gradient;
  WEFT_LAUNCH(join_columns_kernel<Acc>, tiles(p.n, kLanes), dim3(kLanes, kLanes), 0,
              current_stream_handle(problem.device()), p, ColumnPartials<Acc>{partials.data<Acc>()},
              partials.size(0), problem.bias_gradient.data<Acc>());
}

/// Both stages, of C as it was stored. Does nothing where no bias gradient is asked for.
template <class Acc>
void sum_columns(const GemmProblem& problem, const GemmArguments& p) {
  using namespace bias_gradient;
  if (!problem.bias_gradient.defined()) return;
  constexpr int kMaxGridY = 65535;
  const auto groups_of_matrix = static_cast<int>(tiles(p.m, kGroupRows));
  const int64_t groups = p.batches * groups_of_matrix;
  WEFT_CHECK(groups < int64_t{1} << 31, "{}: too many rows for a bias gradient",
             problem.describe());
  const Tensor partials = Tensor::empty(Shape{groups, p.n}, dtype_of<Acc>(), problem.device());
  const auto count = static_cast<int>(groups);
  const dim3 grid(tiles(p.n, kThreads), static_cast<unsigned>(std::min(count, kMaxGridY)));
  WEFT_LAUNCH(column_partials_kernel<Acc>, grid, kThreads, 0,
              current_stream_handle(problem.device()), p, ColumnPartials<Acc>{partials.data<Acc>()},
              groups_of_matrix, count);
  join_columns<Acc>(problem, p, partials);
}

}  // namespace weft::kernels
