// Copies between global and shared memory that run beside the threads.
//
// cp.async (sm_80) copies 4 to 16 bytes per thread, in groups that the same thread waits for.
// TMA (sm_90) copies a box of a tensor described by a TensorMap, issued by one thread; loads end on
// an mbarrier, stores in groups. Coordinates go from the innermost dimension out.
#pragma once

#include "kernels/device/ptx.h"
#include "kernels/device/tensor_map.h"

namespace weft::ptx {

/// Copies kBytes (4, 8, 16), of which `source_bytes` come from `from` and the rest are zeros.
template <int kBytes>
__device__ __forceinline__ void cp_async(void* to, const void* from,
                                         int source_bytes = kBytes WEFT_AND_SITE) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
#ifdef __CUDACC__
  if constexpr (kBytes == 16) {  // past the first-level cache
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(source_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)),
                 "l"(from), "n"(kBytes), "r"(source_bytes)
                 : "memory");
  }
#else
  simt::cp_async(to, from, kBytes, static_cast<size_t>(source_bytes), site);
#endif
}

__device__ __forceinline__ void cp_async_commit() {
  WEFT_PTX(asm volatile("cp.async.commit_group;" ::: "memory"), simt::cp_async_commit());
}

/// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  WEFT_PTX(asm volatile("cp.async.wait_group %0;" ::"n"(kPending)
                        : "memory"),
           simt::cp_async_wait(kPending));
}

/// The barrier counts an arrival once this thread's copies so far are complete.
__device__ __forceinline__ void cp_async_mbarrier_arrive(uint64_t* barrier WEFT_AND_SITE) {
  WEFT_PTX(asm volatile(
               "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory"),
           simt::cp_async_mbarrier_arrive(barrier, site));
}

// Boxes of 2, 3 and 4 dimensions:
//
//   tma_load_Nd(to, map, barrier, x, y, ...) fills a box in shared memory; what lies outside the
//   tensor becomes zero. The whole box counts on the barrier.
//   tma_store_Nd(map, from, x, y, ...) writes a box; what lies outside the tensor is left out.
//   Reads shared memory until tma_store_wait_read, writes global memory until tma_store_wait.

#define WEFT_UNWRAP(...) __VA_ARGS__
#define WEFT_TMA(rank, load_at, store_at, parameters, coordinates, ...)                          \
  __device__ __forceinline__ void tma_load_##rank(                                               \
      void* to, const TensorMap* map, uint64_t* barrier, WEFT_UNWRAP parameters WEFT_AND_SITE) { \
    WEFT_PTX(asm volatile("cp.async.bulk.tensor." #rank ".shared::cluster.global.tile"           \
                          ".mbarrier::complete_tx::bytes [%0], [%1, " load_at                    \
                          "], [%2];" ::"r"(shared_address(to)),                                  \
                          "l"(map), "r"(shared_address(barrier)), __VA_ARGS__                    \
                          : "memory"),                                                           \
             simt::tma_load(to, *map, {WEFT_UNWRAP coordinates}, barrier, site));                \
  }                                                                                              \
  __device__ __forceinline__ void tma_store_##rank(const TensorMap* map, const void* from,       \
                                                   WEFT_UNWRAP parameters WEFT_AND_SITE) {       \
    WEFT_PTX(asm volatile("cp.async.bulk.tensor." #rank ".global.shared::cta.tile.bulk_group"    \
                          " [%0, " store_at "], [%1];" ::"l"(map),                               \
                          "r"(shared_address(from)), __VA_ARGS__                                 \
                          : "memory"),                                                           \
             simt::tma_store(*map, {WEFT_UNWRAP coordinates}, from, site));                      \
  }

WEFT_TMA(2d, "{%3, %4}", "{%2, %3}", (int x, int y), (x, y), "r"(x), "r"(y))
WEFT_TMA(3d, "{%3, %4, %5}", "{%2, %3, %4}", (int x, int y, int z), (x, y, z), "r"(x), "r"(y),
         "r"(z))
WEFT_TMA(4d, "{%3, %4, %5, %6}", "{%2, %3, %4, %5}", (int x, int y, int z, int w), (x, y, z, w),
         "r"(x), "r"(y), "r"(z), "r"(w))
#undef WEFT_TMA
#undef WEFT_UNWRAP

/// tma_load_3d for every block of the cluster that has a bit in `blocks`: the box comes to the same
/// place in each, and counts on each one's barrier there.
__device__ __forceinline__ void tma_multicast_3d(void* to, const TensorMap* map, uint64_t* barrier,
                                                 int x, int y, int z,
                                                 uint16_t blocks WEFT_AND_SITE) {
  WEFT_PTX(asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile"
                        ".mbarrier::complete_tx::bytes.multicast::cluster"
                        " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
                        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "h"(blocks)
                        : "memory"),
           simt::tma_load(to, *map, {x, y, z}, barrier, site, blocks));
}

__device__ __forceinline__ void tma_store_commit() {
  WEFT_PTX(asm volatile("cp.async.bulk.commit_group;" ::: "memory"), simt::bulk_commit());
}
/// Until at most kPending of this thread's groups still read shared memory.
template <int kPending>
__device__ __forceinline__ void tma_store_wait_read() {
  WEFT_PTX(asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending)
                        : "memory"),
           simt::bulk_wait(kPending, true));
}
/// Until at most kPending of this thread's groups are not yet in global memory.
template <int kPending>
__device__ __forceinline__ void tma_store_wait() {
  WEFT_PTX(asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending)
                        : "memory"),
           simt::bulk_wait(kPending, false));
}

}  // namespace weft::ptx
