// What kernels of warpgroups share (sm_90a): the ring of stages between a producer, which has TMA
// fill them, and the consumers; and the way of a warpgroup's sums into shared memory for TMA to
// store.
//
// Tiles in shared memory are boxes of lines of 128 bytes, swizzled by 128.
#pragma once

#include <type_traits>

#include "kernels/device/barrier.h"
#include "kernels/device/mma.h"
#include "kernels/device/warp.cuh"

namespace weft::kernels {

inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kLine = 128;         // bytes
inline constexpr int kAtom = 64 * kLine;  // bytes of 64 lines

/// The thread's number in its warpgroup, read anew: what an epilogue computes from it is not kept
/// in registers through the products, where there are none left.
__device__ __forceinline__ int reread_thread() {
  uint32_t thread;
  WEFT_PTX(asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread)), thread = threadIdx.x);
  return static_cast<int>(thread) % kWarpgroupThreads;
}

/// A stage of a ring and how often it has come round.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// Rounds a warpgroup's 64 rows of sums to T: boxes of 64 columns, `box_bytes` apart. finish(c)
/// gives, for columns c and c + 1, a function (h, i, x) that makes of the sum x in row g + 8 h and
/// column c + i what is rounded. stmatrix takes 16 rows of 16 columns at a time, its lanes the
/// places of their 8 rows of 8.
template <class T, int kCols, class F>
__device__ __forceinline__ void round_into_boxes(char* boxes, const float (&sums)[kCols / 2],
                                                 F finish, int box_bytes = kAtom) {
  static_assert(kCols % 16 == 0);
  const int thread = reread_thread(), warp = thread / kWarp, lane = thread % kWarp;
  const int quad = lane % 4;
  char* const row = boxes + (16 * warp + lane % 16) * kLine;
  const int chunk = 16 * (lane / 16 ^ lane % 8);
#pragma unroll
  for (int j = 0; j < kCols / 8; j += 2) {
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto finished = finish(8 * (j + i) + 2 * quad);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float x = finished(h, 0, sums[4 * (j + i) + 2 * h]);
        const float y = finished(h, 1, sums[4 * (j + i) + 2 * h + 1]);
        pairs[2 * i + h] =
            std::is_same_v<T, bf16> ? ptx::cvt_rn_bf16x2(x, y) : ptx::cvt_rn_f16x2(x, y);
      }
    }
    ptx::stmatrix_x4(row + j / 8 * box_bytes + (chunk ^ 16 * (j % 8)), pairs);
  }
}

}  // namespace weft::kernels
