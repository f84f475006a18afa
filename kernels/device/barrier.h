// Barriers: named ones of a block, mbarriers in shared memory, of a cluster; fences between
// proxies.
//
// An mbarrier's phase ends when as many threads have arrived as mbarrier_init said and all bytes
// that mbarrier_expect_tx announced have come. mbarrier_wait(barrier, parity) passes once the phase
// of that parity is over; on a fresh barrier parity 1 passes at once. A ring of stages therefore
// flips its parity each time round.
#pragma once

#include "kernels/device/ptx.h"

namespace weft::ptx {

/// bar.sync: waits for `threads` threads, a multiple of 32. Barrier 0 is __syncthreads'.
__device__ __forceinline__ void named_barrier_sync(int id, int threads WEFT_AND_SITE) {
  WEFT_PTX(asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads)
                        : "memory"),
           simt::barrier_sync(id, threads, site));
}

/// bar.arrive: counts for others' named_barrier_sync, without waiting.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads WEFT_AND_SITE) {
  WEFT_PTX(asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads)
                        : "memory"),
           simt::barrier_arrive(id, threads, site));
}

__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, uint32_t arrivals WEFT_AND_SITE) {
  WEFT_PTX(asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                        "r"(arrivals)
                        : "memory"),
           simt::mbarrier_init(barrier, arrivals, site));
}

/// Makes initialised mbarriers visible to TMA and to the cluster's other blocks.
__device__ __forceinline__ void fence_mbarrier_init() {
  WEFT_PTX(asm volatile("fence.mbarrier_init.release.cluster;" ::
                            : "memory"),
           simt::fence_proxy_async());
}

__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier WEFT_AND_SITE) {
  WEFT_PTX(asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                        : "memory"),
           simt::mbarrier_arrive(barrier, 1, site));
}

/// Arrives at the barrier at the same place in another block of the cluster. Says to that block
/// that reads are over; a release of writes to it would be a fence of the whole device (.cluster).
__device__ __forceinline__ void mbarrier_arrive_cluster(uint64_t* barrier,
                                                        uint32_t rank WEFT_AND_SITE) {
  WEFT_PTX(asm volatile("{\n .reg .b32 remote;\n mapa.shared::cluster.u32 remote, %0, %1;\n"
                        " mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(
                            shared_address(barrier)),
                        "r"(rank)
                        : "memory"),
           simt::mbarrier_arrive(static_cast<uint64_t*>(simt::cluster_address(barrier, rank, site)),
                                 1, site));
}

/// Announces `bytes` that copies will bring in this phase.
__device__ __forceinline__ void mbarrier_expect_tx(uint64_t* barrier,
                                                   uint32_t bytes WEFT_AND_SITE) {
  WEFT_PTX(asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(
                            shared_address(barrier)),
                        "r"(bytes)
                        : "memory"),
           simt::mbarrier_expect_tx(barrier, bytes, site));
}

/// mbarrier_expect_tx, then mbarrier_arrive.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t* barrier,
                                                          uint32_t bytes WEFT_AND_SITE) {
  WEFT_PTX(asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                            shared_address(barrier)),
                        "r"(bytes)
                        : "memory"),
           simt::mbarrier_expect_tx(barrier, bytes, site);
           simt::mbarrier_arrive(barrier, 1, site));
}

__device__ __forceinline__ bool mbarrier_try_wait(uint64_t* barrier,
                                                  uint32_t parity WEFT_AND_SITE) {
#ifdef __CUDACC__
  uint32_t is_over;
  asm volatile(
      "{\n .reg .pred over;\n mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
      " selp.u32 %0, 1, 0, over;\n}"
      : "=r"(is_over)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return is_over != 0;
#else
  return simt::mbarrier_test(barrier, parity, site);
#endif
}

__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, uint32_t parity WEFT_AND_SITE) {
#ifdef __CUDACC__
  while (!mbarrier_try_wait(barrier, parity)) {
  }
#else
  simt::mbarrier_wait(barrier, parity, site);
#endif
}

/// Between ordinary writes to shared memory and TMA stores or wgmma that read them. Every writing
/// thread executes it, then a barrier tells the one that issues.
__device__ __forceinline__ void fence_proxy_async() {
  WEFT_PTX(asm volatile("fence.proxy.async.shared::cta;" ::: "memory"), simt::fence_proxy_async());
}

__device__ __forceinline__ void cluster_arrive() {
  WEFT_PTX(asm volatile("barrier.cluster.arrive.release.aligned;" ::
                            : "memory"),
           simt::cluster_arrive());
}

__device__ __forceinline__ void cluster_wait(WEFT_SITE) {
  WEFT_PTX(asm volatile("barrier.cluster.wait.acquire.aligned;" ::
                            : "memory"),
           simt::cluster_wait(site));
}

/// This block's place in its cluster.
__device__ __forceinline__ uint32_t cluster_rank() {
#ifdef __CUDACC__
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return simt::cluster_rank();
#endif
}

/// Moves registers between warpgroups: of a multiple of 8 from 24 to 256 per thread.
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc(WEFT_SITE) {
  WEFT_PTX(asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters)),
           simt::set_max_registers(kRegisters, true, site));
}
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec(WEFT_SITE) {
  WEFT_PTX(asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters)),
           simt::set_max_registers(kRegisters, false, site));
}

}  // namespace weft::ptx
