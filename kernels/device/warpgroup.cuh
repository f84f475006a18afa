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

/// The number of the thread's warpgroup. From a lane: what ptxas knows to be one number in a warp
/// it computes in uniform registers, addresses and descriptors too.
__device__ __forceinline__ int uniform_warpgroup() {
  return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroupThreads, 0);
}

/// The thread's number in its warpgroup, read anew: what an epilogue computes from it is not kept
/// in registers through the products, where there are none left.
__device__ __forceinline__ int reread_thread() {
  uint32_t thread;
  WEFT_PTX(asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread)), thread = threadIdx.x);
  return static_cast<int>(thread % kWarpgroupThreads);
}

/// The same place or number, of which the compiler knows nothing: what follows from it is computed
/// where it is used, not before a loop that has no registers to keep it in.
__device__ __forceinline__ char* reread_place(char* place) {
  WEFT_PTX(asm volatile("" : "+l"(place)), );
  return place;
}
__device__ __forceinline__ int reread_number(int number) {
  WEFT_PTX(asm volatile("" : "+r"(number)), );
  return number;
}
__device__ __forceinline__ uint64_t reread_number(uint64_t number) {
  WEFT_PTX(asm volatile("" : "+l"(number)), );
  return number;
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
  /// As often as that.
  __device__ __forceinline__ void skip(int count) {
    stage += count;
    parity ^= static_cast<uint32_t>(stage / kStages) & 1;
    stage %= kStages;
  }
};

/// Where a lane of a warpgroup has stmatrix lay down its 8 of the 16 x 16 elements of 2 bytes in
/// columns 8 j of 64 rows, in boxes of 64 columns `box_bytes` apart.
class LanePlaces {
 public:
  __device__ __forceinline__ explicit LanePlaces(char* boxes, int box_bytes = kAtom)
      : box_bytes_(box_bytes) {
    const int thread = reread_thread(), warp = thread / kWarp, lane = thread % kWarp;
    row_ = boxes + (16 * warp + lane % 16) * kLine;
    chunk_ = 16 * (lane / 16 ^ lane % 8);
  }
  __device__ __forceinline__ char* operator[](int j) const {
    return row_ + j / 8 * box_bytes_ + (chunk_ ^ 16 * (j % 8));
  }

 private:
  int box_bytes_;
  char* row_;
  int chunk_;
};

/// Stores a warpgroup's fragments, 64 rows of 16 kSteps columns of 2 bytes as wgmma takes them.
template <int kSteps>
__device__ __forceinline__ void store_fragments(char* box, const uint32_t (&fragments)[kSteps][4]) {
  const LanePlaces places(box);
#pragma unroll
  for (int k = 0; k < kSteps; ++k) ptx::stmatrix_x4(places[2 * k], fragments[k]);
}

/// Rounds a warpgroup's 64 rows of sums to T and stores them in boxes. finish(c) gives, for columns
/// c and c + 1, a function (h, i, x) that makes of the sum x in row g + 8 h and column c + i what
/// is rounded.
template <class T, int kCols, class F>
__device__ __forceinline__ void round_into_boxes(char* boxes, const float (&sums)[kCols / 2],
                                                 F finish, int box_bytes = kAtom) {
  static_assert(kCols % 16 == 0);
  const LanePlaces places(boxes, box_bytes);
  const int quad = reread_thread() % 4;
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
    ptx::stmatrix_x4(places[j], pairs);
  }
}

}  // namespace weft::kernels
