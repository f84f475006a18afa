// Sums and maxima over the lanes of a warp and the warps of a block, in an order that depends on
// nothing: pairs of lanes at distance 16, 8, 4, 2, 1, then the warps in turn.
#pragma once

#include "kernels/device/cuda.h"

namespace weft::kernels {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

/// join(a, b) of all lanes, in all lanes.
template <class T, class F>
__device__ __forceinline__ T warp_join(T x, F join) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    x = join(x, __shfl_xor_sync(kAllLanes, x, distance));
  }
  return x;
}

template <class T>
__device__ __forceinline__ T warp_sum(T x) {
  return warp_join(x, [](T a, T b) { return a + b; });
}

/// A NaN is ignored unless all are.
template <class T>
__device__ __forceinline__ T warp_max(T x) {
  return warp_join(x, [](T a, T b) { return a < b || a != a ? b : a; });
}

/// join of all threads of a block of kThreads, in all threads. Every thread calls it; a second call
/// may follow at once.
template <int kThreads, class T, class F>
__device__ __forceinline__ T block_join(T x, F join) {
  static_assert(kThreads % kWarp == 0 && kThreads <= kWarp * kWarp);
  WEFT_SHARED(T, partial, [kThreads / kWarp]);
  x = warp_join(x, join);
  __syncthreads();  // the last call's readers are done
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = partial[0];
  for (int warp = 1; warp < kThreads / kWarp; ++warp) x = join(x, partial[warp]);
  return x;
}

template <int kThreads, class T>
__device__ __forceinline__ T block_sum(T x) {
  return block_join<kThreads>(x, [](T a, T b) { return a + b; });
}

/// Blocks of `threads` that cover n, at most as many as fill any GPU several times; kernels step
/// over the rest.
inline unsigned blocks_for(int64_t n, int64_t threads) {
  constexpr int64_t kMost = 132 * 32;
  const int64_t blocks = (n + threads - 1) / threads;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks < kMost ? blocks : kMost);
}

}  // namespace weft::kernels
