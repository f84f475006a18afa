#include "kernels/simt/faults_test.h"

#include <cstring>

#include "kernels/device/barrier.h"
#include "kernels/device/copy_async.h"
#include "kernels/device/mma.h"
#include "kernels/device/wgmma.h"
#include "kernels/simt/faults_test_helper.h"

namespace weft::kernels {
namespace {

using namespace ptx;

__global__ void missing_barrier(bool faulty, float* data) {
  WEFT_SHARED(float, tile, [128]);
  tile[threadIdx.x] = data[threadIdx.x];
  if (!faulty) __syncthreads();
  data[128 + threadIdx.x] = tile[127 - threadIdx.x];
}

__global__ void missing_barrier_before_overwrite(bool faulty, float* data) {
  WEFT_SHARED(float, tile, [128]);
  float sum = 0;
  for (int i = 0; i < 3; ++i) {
    tile[threadIdx.x] = data[i * 128 + threadIdx.x];
    __syncthreads();
    sum += tile[127 - threadIdx.x];
    if (!faulty) __syncthreads();
  }
  data[1024 + threadIdx.x] = sum;
}

__global__ void race_in_header_helper(bool faulty, float* data) {
  WEFT_SHARED(float, tile, [128]);
  publish(tile, data[threadIdx.x]);
  if (!faulty) __syncthreads();
  data[128 + threadIdx.x] = neighbour(tile);
}

__global__ void missing_warp_sync(bool faulty, float* data) {
  WEFT_SHARED(float, tile, [32]);
  tile[threadIdx.x] = data[threadIdx.x];
  if (!faulty) __syncwarp();
  data[32 + threadIdx.x] = tile[31 - threadIdx.x];
}

struct Parameter {
  float factor;
};

__global__ void parameter_written(bool faulty, float* data, WEFT_GRID_CONSTANT(Parameter) p) {
  if (faulty) const_cast<Parameter&>(p).factor = 2;
  data[threadIdx.x] *= p.factor;
}

__global__ void narrow_stores(bool faulty, float* data) {
  WEFT_SHARED(uint16_t, halves, [256]);
  const unsigned i = threadIdx.x;
  halves[i] = static_cast<uint16_t>(i);
  if (faulty && i > 0) halves[i - 1] = 0;
  __syncthreads();
  data[i] = halves[255 - i];
}

__global__ void named_barrier_too_few(bool faulty, float* data) {
  WEFT_SHARED(float, tile, [128]);
  const unsigned i = threadIdx.x;
  // Warps 2 and 3 hand over to warps 0 and 1.
  if (i >= 64) {
    tile[i] = data[i];
    if (faulty ? i >= 96 : true) named_barrier_arrive(1, faulty ? 96 : 128);
  } else {
    named_barrier_sync(1, faulty ? 96 : 128);
    data[128 + i] = tile[64 + i];
  }
}

/// data[0..128) is read, data[128..256) is written; the faulty one reads on.
__global__ void uninitialised_global(bool faulty, float* data) {
  data[128 + threadIdx.x] = data[threadIdx.x] + (faulty ? data[256 + threadIdx.x] : 0);
}

__global__ void missing_copy_wait(bool faulty, float* data) {
  WEFT_SHARED(float, tile, [128]);
  cp_async<4>(&tile[threadIdx.x], &data[threadIdx.x]);
  cp_async_commit();
  if (!faulty) cp_async_wait<0>();
  __syncthreads();
  data[128 + threadIdx.x] = tile[127 - threadIdx.x];
}

__global__ void copy_wait_too_late(bool faulty, float* data) {
  WEFT_SHARED(float, tile, [2][128]);
  for (int stage = 0; stage < 2; ++stage) {
    cp_async<4>(&tile[stage][threadIdx.x], &data[stage * 128 + threadIdx.x]);
    cp_async_commit();
  }
  if (faulty) {
    cp_async_wait<2>();
  } else {
    cp_async_wait<1>();
  }
  __syncthreads();
  data[256 + threadIdx.x] = tile[0][127 - threadIdx.x];
  cp_async_wait<0>();
}

__global__ void copy_overwrites_buffer(bool faulty, float* data) {
  WEFT_SHARED(float, tile, [128]);
  tile[threadIdx.x] = 1;
  __syncthreads();
  data[128 + threadIdx.x] = tile[127 - threadIdx.x];
  if (!faulty) __syncthreads();
  cp_async<4>(&tile[threadIdx.x], &data[threadIdx.x]);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  data[256 + threadIdx.x] = tile[127 - threadIdx.x];
}

__global__ void shared_out_of_bounds(bool faulty, float* data) {
  WEFT_SHARED(float, tile, [64]);
  float* const place = tile;  // whose array's size nobody knows
  place[threadIdx.x + (faulty ? 1 : 0)] = 1;
  __syncthreads();
  data[threadIdx.x] = tile[threadIdx.x];
}

__global__ void row_out_of_bounds(bool faulty, float* data) {
  WEFT_SHARED(float, tile, [2][32]);
  tile[0][threadIdx.x + (faulty ? 1 : 0)] = 1;
  __syncthreads();
  data[threadIdx.x] = tile[0][threadIdx.x];
}

/// On the thread's stack or in its registers.
__global__ void local_out_of_bounds(bool faulty, float* data) {
  float row[4];
  for (unsigned i = 0; i < 4; ++i) row[i] = data[4 * threadIdx.x + i];
  data[512 + threadIdx.x] = row[threadIdx.x % 4 + (faulty ? 1 : 0)];
}

__global__ void global_out_of_bounds(bool faulty, float* data) {
  data[4032 + threadIdx.x + (faulty ? 1 : 0)] = 0;
}

__global__ void misaligned(bool faulty, float* data) {
  if (threadIdx.x != 0) return;
  const float4 v = *reinterpret_cast<const float4*>(data + (faulty ? 2 : 4));
  *reinterpret_cast<float4*>(data + 8) = v;
}

__global__ void uninitialised(bool faulty, float* data) {
  WEFT_SHARED(float, tile, [64]);
  if (!faulty || threadIdx.x < 63) tile[threadIdx.x] = 1;
  __syncthreads();
  data[threadIdx.x] = tile[63 - threadIdx.x];
}

__global__ void divergent_barrier(bool faulty, float* data) {
  if (faulty && threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  data[threadIdx.x] = 1;
}

__global__ void race_between_blocks(bool faulty, float* data) {
  WEFT_SHARED(int, is_last);
  data[blockIdx.x * 32 + threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x == 0) {
    if (!faulty) __threadfence();
    auto* const count = reinterpret_cast<unsigned*>(data + 2048);
    is_last = atomicAdd(count, 1u) == gridDim.x - 1;
    if (!faulty) __threadfence();
  }
  __syncthreads();
  if (is_last) {
    float sum = 0;
    for (unsigned b = 0; b < gridDim.x; ++b) sum += data[b * 32 + threadIdx.x];
    data[1024 + threadIdx.x] = sum;
    if (threadIdx.x == 0) *reinterpret_cast<unsigned*>(data + 2048) = 0;
  }
}

__global__ void mbarrier_never_completes(bool faulty, float* data) {
  WEFT_SHARED(uint64_t, barrier);
  if (threadIdx.x == 0) mbarrier_init(&barrier, faulty ? 33 : 32);
  __syncthreads();
  mbarrier_arrive(&barrier);
  mbarrier_wait(&barrier, 0);
  data[threadIdx.x] = 1;
}

/// A producer warp fills a ring of two stages for a consumer warp.
__global__ void ring(bool faulty, float* data, int fault) {
  WEFT_SHARED(float, stage, [2][32]);
  WEFT_SHARED(uint64_t, full, [2]);
  WEFT_SHARED(uint64_t, empty, [2]);
  const unsigned lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) {
      mbarrier_init(&full[s], 32);
      mbarrier_init(&empty[s], 32);
    }
  }
  __syncthreads();
  constexpr int kTiles = 5;
  if (threadIdx.x < 32) {
    for (int i = 0; i < kTiles; ++i) {
      const unsigned parity = static_cast<unsigned>(i / 2 % 2);
      if (!(faulty && fault == 0)) mbarrier_wait(&empty[i % 2], parity ^ 1);
      stage[i % 2][lane] = data[i * 32 + lane];
      mbarrier_arrive(&full[i % 2]);
    }
  } else {
    float sum = 0;
    for (int i = 0; i < kTiles; ++i) {
      const unsigned parity = static_cast<unsigned>(i / 2 % 2);
      if (!(faulty && fault == 1)) mbarrier_wait(&full[i % 2], parity);
      sum += stage[i % 2][31 - lane];
      mbarrier_arrive(&empty[i % 2]);
    }
    data[1024 + lane] = sum;
  }
}

/// Rows of 32 floats through TMA and back.
__global__ void tma(bool faulty, const __grid_constant__ TensorMap map, int fault) {
  WEFT_DYNAMIC_SHARED(float, tile);
  WEFT_SHARED(uint64_t, barrier);
  if (threadIdx.x == 0) {
    mbarrier_init(&barrier, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(&barrier, faulty && fault == 0 ? 2 * 1024 : 1024);
    tma_load_2d(tile, &map, &barrier, 0, 0);
  }
  if (!(faulty && fault == 1)) mbarrier_wait(&barrier, 0);
  for (int i = static_cast<int>(threadIdx.x); i < 256; i += 64) tile[i] *= 2;
  if (!(faulty && fault == 2)) fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    tma_store_2d(&map, tile, 0, 8);
    tma_store_commit();
    if (!(faulty && fault == 3)) tma_store_wait_read<0>();
  }
  if (fault == 4) {
    if (!faulty) __syncthreads();
    tile[threadIdx.x] = 0;
  }
}

/// Each of two blocks multicasts a box of 32 x 8 floats to both, twice.
__global__ void cluster(bool faulty, const __grid_constant__ TensorMap map, float* data,
                        int fault) {
  WEFT_DYNAMIC_SHARED(float, tile);
  WEFT_SHARED(uint64_t, full);
  WEFT_SHARED(uint64_t, empty);
  const unsigned rank = cluster_rank(), i = threadIdx.x;
  if (i == 0) {
    mbarrier_init(&full, 1);
    mbarrier_init(&empty, 2);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (!(faulty && fault == 0)) {
    cluster_arrive();
    cluster_wait();
  }
  float sum = 0;
  for (unsigned round = 0; round < 2; ++round) {
    if (i == 0) {
      if (!(faulty && fault == 1)) mbarrier_wait(&empty, round ^ 1);
      mbarrier_arrive_expect_tx(&full, 2 * 1024);
      const auto blocks = static_cast<uint16_t>(faulty && fault == 2 ? 7 : 3);
      tma_multicast_3d(tile + 256 * rank, &map, &full, 0, static_cast<int>(8 * rank), 0, blocks);
    }
    __syncwarp();
    mbarrier_wait(&full, round);
    sum += tile[i] + tile[256 + i];
    __syncthreads();
    if (i < 2) mbarrier_arrive_cluster(&empty, i);
    __syncwarp();
  }
  data[1024 + 64 * rank + i] = sum;
  if (!(faulty && fault == 3)) {
    cluster_arrive();
    cluster_wait();
  }
}

/// A 64 x 64 x 64 product of bf16 ones.
__global__ void tensor_core(bool faulty, float* data, int fault) {
  WEFT_DYNAMIC_SHARED(uint16_t, tiles);
  for (int i = static_cast<int>(threadIdx.x); i < 2 * 4096; i += 128) tiles[i] = 0x3f80;
  if (!(faulty && fault == 0)) fence_proxy_async();
  __syncthreads();
  float d[32];
  for (float& x : d) x = 0;
  if (!(faulty && fault == 1)) wgmma_fence();
  for (int k = 0; k < 4; ++k) {
    wgmma<Bf16, 64>(d, wgmma_descriptor_k_major(tiles + 16 * k),
                    wgmma_descriptor_k_major(tiles + 4096 + 16 * k), true);
  }
  wgmma_commit();
  if (!(faulty && fault == 2)) wgmma_wait<0>();
  if (faulty && fault == 2) data[threadIdx.x] = d[0];
  for (int i = 0; i < 32; ++i) data[i * 128 + threadIdx.x] = d[i];
}

/// The left operand lies in registers until the product is over.
__global__ void early_rewrite(bool faulty, float* data) {
  WEFT_DYNAMIC_SHARED(uint16_t, tiles);
  for (int i = static_cast<int>(threadIdx.x); i < 4096; i += 128) tiles[i] = 0x3f80;
  fence_proxy_async();
  __syncthreads();
  float d[32];
  uint32_t a[4];
  for (uint32_t& x : a) x = 0x3f803f80;
  wgmma_fence();
  wgmma_of_registers<Bf16, 64, Major::kMn>(d, a, wgmma_descriptor_mn_major(tiles, 4096), false);
  wgmma_commit();
  if (!faulty) wgmma_wait<0>();
  a[0] = __float_as_uint(data[threadIdx.x]);
  if (faulty) wgmma_wait<0>();
  data[threadIdx.x] = d[0] + __uint_as_float(a[0]);
}

__global__ void early_overwrite(bool faulty, float* data) {
  WEFT_DYNAMIC_SHARED(uint16_t, tiles);
  for (int i = static_cast<int>(threadIdx.x); i < 2 * 4096; i += 128) tiles[i] = 0x3f80;
  fence_proxy_async();
  __syncthreads();
  float d[32];
  for (float& x : d) x = 0;
  wgmma_fence();
  wgmma<Bf16, 64>(d, wgmma_descriptor_k_major(tiles), wgmma_descriptor_k_major(tiles + 4096), true);
  wgmma_commit();
  if (!faulty) wgmma_wait<0>();
  __syncthreads();
  tiles[threadIdx.x] = 0;
  if (faulty) wgmma_wait<0>();
  data[threadIdx.x] = d[0];
}

__global__ void registers(bool faulty, float* data) {
  if (threadIdx.x < 128) {
    setmaxnreg_dec<24>();
  } else {
    if (faulty) {
      setmaxnreg_inc<256>();
    } else {
      setmaxnreg_inc<240>();
    }
  }
  data[threadIdx.x] = 1;
}

__global__ void partial_mask(bool faulty, float* data) {
  const unsigned mask = threadIdx.x < 16 ? 0xffffu : (faulty ? 0xffffffffu : 0xffff0000u);
  data[threadIdx.x] = __shfl_xor_sync(mask, 1.0f, 1);
}

}  // namespace

void run_fault_kernel(const char* name, bool faulty, float* data) {
  const auto is = [&](const char* other) { return std::strcmp(name, other) == 0; };
#define WEFT_RUN(kernel, grid, block, shared) \
  if (is(#kernel)) WEFT_LAUNCH(kernel, grid, block, shared, nullptr, faulty, data)
  WEFT_RUN(missing_barrier, 1, 128, 0);
  WEFT_RUN(missing_barrier_before_overwrite, 1, 128, 0);
  WEFT_RUN(race_in_header_helper, 1, 128, 0);
  WEFT_RUN(missing_warp_sync, 1, 32, 0);
  WEFT_RUN(narrow_stores, 1, 256, 0);
  WEFT_RUN(named_barrier_too_few, 1, 128, 0);
  WEFT_RUN(uninitialised_global, 1, 128, 0);
  WEFT_RUN(missing_copy_wait, 1, 128, 0);
  WEFT_RUN(copy_wait_too_late, 1, 128, 0);
  WEFT_RUN(copy_overwrites_buffer, 1, 128, 0);
  WEFT_RUN(shared_out_of_bounds, 1, 64, 0);
  WEFT_RUN(row_out_of_bounds, 1, 32, 0);
  WEFT_RUN(local_out_of_bounds, 1, 64, 0);
  WEFT_RUN(global_out_of_bounds, 1, 64, 0);
  WEFT_RUN(misaligned, 1, 32, 0);
  WEFT_RUN(uninitialised, 1, 64, 0);
  WEFT_RUN(divergent_barrier, 1, 32, 0);
  WEFT_RUN(race_between_blocks, 4, 32, 0);
  WEFT_RUN(mbarrier_never_completes, 1, 32, 0);
  WEFT_RUN(early_overwrite, 1, 128, 16384);
  WEFT_RUN(early_rewrite, 1, 128, 8192);
  WEFT_RUN(registers, 1, 384, 0);
  WEFT_RUN(partial_mask, 1, 32, 0);
#undef WEFT_RUN
  if (is("parameter_written")) {
    WEFT_LAUNCH(parameter_written, 1, 32, 0, nullptr, faulty, data, Parameter{.factor = 3});
  }
  if (std::strncmp(name, "ring", 4) == 0) {
    WEFT_LAUNCH(ring, 1, 64, 0, nullptr, faulty, data, name[4] - '0');
  }
  if (std::strncmp(name, "tma", 3) == 0) {
    const TensorMap map = make_tensor_map({.base = data,
                                           .dtype = DType::f32,
                                           .dims = {32, 16},
                                           .strides = {128},
                                           .box = {32, 8},
                                           .swizzle = TmaSwizzle::kBytes128});
    WEFT_LAUNCH(tma, 1, 64, 2048, nullptr, faulty, map, name[3] - '0');
  }
  if (std::strncmp(name, "cluster", 7) == 0) {
    const TensorMap map = make_tensor_map({.base = data,
                                           .dtype = DType::f32,
                                           .rank = 3,
                                           .dims = {32, 16, 1},
                                           .strides = {128, 2048},
                                           .box = {32, 8, 1}});
    WEFT_LAUNCH_CLUSTER(cluster, dim3(2), 2, 64, 2048, nullptr, faulty, map, data, name[7] - '0');
  }
  if (std::strncmp(name, "tensor_core", 11) == 0) {
    WEFT_LAUNCH(tensor_core, 1, 128, 16384, nullptr, faulty, data, name[11] - '0');
  }
}

}  // namespace weft::kernels
