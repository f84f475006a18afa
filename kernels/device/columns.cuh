// The second step of sums over rows: blocks have left partial rows [parts, n], whose columns are
// added in an order that the number of parts alone decides, without atomics.
#pragma once

#include "kernels/device/warp.cuh"

namespace weft::kernels {

/// The sum of column `column` < n of partial [parts, n]. A block of kWarp x kWarps threads calls
/// it, once, with a column for each threadIdx.x; the sum is that of the threads with threadIdx.y =
/// 0. Warp y adds every kWarps-th row from y on, then those sums meet.
template <class Sum, int kWarps, class T>
__device__ __forceinline__ Sum sum_of_column(const T* partial, int64_t parts, int64_t n,
                                             int64_t column) {
  WEFT_SHARED(Sum, sums, [kWarps][kWarp]);
  Sum sum = 0;
  if (column < n) {
#pragma unroll 4
    for (int64_t part = threadIdx.y; part < parts; part += kWarps) {
      sum += static_cast<Sum>(partial[part * n + column]);
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0) return sum;
  for (int warp = 1; warp < kWarps; ++warp) sum += sums[warp][threadIdx.x];
  return sum;
}

}  // namespace weft::kernels
