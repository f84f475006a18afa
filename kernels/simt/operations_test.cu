#include "kernels/simt/operations_test.h"

#include "kernels/device/barrier.h"
#include "kernels/device/copy_async.h"
#include "kernels/device/mma.h"
#include "kernels/device/wgmma.h"

namespace weft::kernels {
namespace {

using namespace ptx;

__device__ void store(const float (&d)[4], float* c) {
  const unsigned g = threadIdx.x / 4, q = threadIdx.x % 4;
  for (unsigned i = 0; i < 4; ++i) c[(g + 8 * (i / 2)) * 8 + 2 * q + i % 2] = d[i];
}

__device__ uint32_t pair(const uint16_t* x) { return x[0] | static_cast<uint32_t>(x[1]) << 16; }

__global__ void mma_bf16_kernel(const uint16_t* a, const uint16_t* b, float* c) {
  const unsigned g = threadIdx.x / 4, q = threadIdx.x % 4;
  uint32_t ra[4], rb[2];
  for (unsigned r = 0; r < 4; ++r) ra[r] = pair(a + (g + 8 * (r % 2)) * 16 + 2 * q + 8 * (r / 2));
  for (unsigned r = 0; r < 2; ++r) rb[r] = pair(b + g * 16 + 2 * q + 8 * r);
  float d[4] = {};
  mma_m16n8k16_bf16(d, ra, rb);
  store(d, c);
}

__global__ void mma_f16_k8_kernel(const uint16_t* a, const uint16_t* b, float* c) {
  const unsigned g = threadIdx.x / 4, q = threadIdx.x % 4;
  uint32_t ra[2], rb[1];
  for (unsigned r = 0; r < 2; ++r) ra[r] = pair(a + (g + 8 * r) * 8 + 2 * q);
  rb[0] = pair(b + g * 8 + 2 * q);
  float d[4] = {};
  mma_m16n8k8_f16(d, ra, rb);
  store(d, c);
}

__global__ void mma_tf32_kernel(const float* a, const float* b, float* c) {
  const unsigned g = threadIdx.x / 4, q = threadIdx.x % 4;
  uint32_t ra[4], rb[2];
  for (unsigned r = 0; r < 4; ++r) {
    ra[r] = __float_as_uint(a[(g + 8 * (r % 2)) * 8 + q + 4 * (r / 2)]);
  }
  for (unsigned r = 0; r < 2; ++r) rb[r] = __float_as_uint(b[g * 8 + q + 4 * r]);
  float d[4] = {};
  mma_m16n8k8_tf32(d, ra, rb);
  store(d, c);
}

__global__ void mma_e4m3_kernel(const uint8_t* a, const uint8_t* b, float* c) {
  const unsigned g = threadIdx.x / 4, q = threadIdx.x % 4;
  uint32_t ra[4] = {}, rb[2] = {};
  for (unsigned i = 0; i < 16; ++i) {
    const unsigned row = g + 8 * (i / 4 % 2), col = 4 * q + i % 4 + 16 * (i / 8);
    ra[i / 4] |= static_cast<uint32_t>(a[row * 32 + col]) << (8 * (i % 4));
  }
  for (unsigned i = 0; i < 8; ++i) {
    const unsigned k = 4 * q + i % 4 + 16 * (i / 4);
    rb[i / 4] |= static_cast<uint32_t>(b[g * 32 + k]) << (8 * (i % 4));
  }
  float d[4] = {};
  mma_m16n8k32_e4m3(d, ra, rb);
  store(d, c);
}

__global__ void ldmatrix_kernel(const uint16_t* a, const uint16_t* b, float* c) {
  struct alignas(16) Row {
    uint16_t x[8];
  };
  WEFT_SHARED(Row, rows_a, [32]);  // matrices: rows 0-7, 8-15 of columns 0-7, then 8-15
  WEFT_SHARED(Row, rows_b, [16]);
  const unsigned lane = threadIdx.x;
  for (unsigned j = 0; j < 8; ++j) {
    rows_a[lane].x[j] = a[lane % 16 * 16 + lane / 16 * 8 + j];
    if (lane < 16) rows_b[lane].x[j] = b[lane * 8 + j];
  }
  __syncwarp();
  uint32_t ra[4], rb[2];
  ldmatrix_x4(ra, &rows_a[lane]);
  ldmatrix_x2_trans(rb, &rows_b[lane % 16]);
  float d[4] = {};
  mma_m16n8k16_bf16(d, ra, rb);
  store(d, c);
}

template <int kN, Major kA, Major kB>
__global__ void wgmma_kernel(const __grid_constant__ TensorMap a_map,
                             const __grid_constant__ TensorMap b_map, float* c) {
  WEFT_DYNAMIC_SHARED(char, tiles);
  WEFT_SHARED(uint64_t, barrier);
  constexpr int kBytesA = kA == Major::kK ? 64 * 128 : 32 * 128;
  char* const tile_b = tiles + 8192;
  if (threadIdx.x == 0) {
    mbarrier_init(&barrier, 1);
    fence_mbarrier_init();
    constexpr int kBytesB = kB == Major::kK ? kN * 128 : kN / 64 * 32 * 128;
    mbarrier_arrive_expect_tx(&barrier, kBytesA + kBytesB);
    tma_load_2d(tiles, &a_map, &barrier, 0, 0);
    for (int i = 0; kB == Major::kMn && i < kN / 64; ++i) {
      tma_load_2d(tile_b + i * 4096, &b_map, &barrier, i * 64, 0);
    }
    if (kB == Major::kK) tma_load_2d(tile_b, &b_map, &barrier, 0, 0);
  }
  __syncthreads();
  mbarrier_wait(&barrier, 0);
  float d[kN / 2];
  wgmma_fence();
  for (int k = 0; k < 2; ++k) {
    const uint64_t da = kA == Major::kK ? wgmma_descriptor_k_major(tiles + 32 * k)
                                        : wgmma_descriptor_mn_major(tiles + 2048 * k, 4096);
    const uint64_t db = kB == Major::kK ? wgmma_descriptor_k_major(tile_b + 32 * k)
                                        : wgmma_descriptor_mn_major(tile_b + 2048 * k, 4096);
    wgmma<Bf16, kN, kA, kB>(d, da, db, k > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  const unsigned warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  for (unsigned i = 0; i < kN / 2; ++i) {
    c[(16 * warp + g + 8 * (i / 2 % 2)) * kN + 8 * (i / 4) + 2 * q + i % 2] = d[i];
  }
}

/// a from registers, b [32, kN] in boxes of 64 columns.
template <int kN>
__global__ void wgmma_of_registers_kernel(const uint16_t* a, const __grid_constant__ TensorMap map,
                                          float* c) {
  WEFT_DYNAMIC_SHARED(char, tile);
  WEFT_SHARED(uint64_t, barrier);
  constexpr int kBoxes = (kN + 63) / 64;
  if (threadIdx.x == 0) {
    mbarrier_init(&barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(&barrier, kBoxes * 4096);
    for (int i = 0; i < kBoxes; ++i) tma_load_2d(tile + i * 4096, &map, &barrier, i * 64, 0);
  }
  __syncthreads();
  mbarrier_wait(&barrier, 0);
  const unsigned warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  uint32_t fragments[2][4];
  for (unsigned k = 0; k < 2; ++k) {
    for (unsigned r = 0; r < 4; ++r) {
      const unsigned row = 16 * warp + g + 8 * (r % 2), column = 16 * k + 2 * q + 8 * (r / 2);
      fragments[k][r] = pair(a + row * 32 + column);
    }
  }
  float d[kN / 2];
  wgmma_fence();
  for (int k = 0; k < 2; ++k) {
    wgmma_of_registers<Bf16, kN, Major::kMn>(
        d, fragments[k], wgmma_descriptor_mn_major(tile + 2048 * k, 4096), k > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  for (unsigned i = 0; i < kN / 2; ++i) {
    c[(16 * warp + g + 8 * (i / 2 % 2)) * kN + 8 * (i / 4) + 2 * q + i % 2] = d[i];
  }
}

/// Operands of 64 bytes a row, half of each line of 128.
template <class TypeA, class TypeB, int kN>
__global__ void wgmma_half_lines_kernel(const __grid_constant__ TensorMap a_map,
                                        const __grid_constant__ TensorMap b_map, float* c) {
  WEFT_DYNAMIC_SHARED(char, tiles);
  WEFT_SHARED(uint64_t, barrier);
  char* const tile_b = tiles + 64 * 128;
  if (threadIdx.x == 0) {
    mbarrier_init(&barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(&barrier, (64 + kN) * 128);
    tma_load_2d(tiles, &a_map, &barrier, 0, 0);
    tma_load_2d(tile_b, &b_map, &barrier, 0, 0);
  }
  __syncthreads();
  mbarrier_wait(&barrier, 0);
  float d[kN / 2];
  wgmma_fence();
  for (int k = 0; k < 2; ++k) {
    issue_wgmma<TypeA, TypeB, kN, Major::kK, Major::kK>(d, wgmma_descriptor_k_major(tiles + 32 * k),
                                                        wgmma_descriptor_k_major(tile_b + 32 * k),
                                                        k > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  const unsigned warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  for (unsigned i = 0; i < kN / 2; ++i) {
    c[(16 * warp + g + 8 * (i / 2 % 2)) * kN + 8 * (i / 4) + 2 * q + i % 2] = d[i];
  }
}

TensorMap bytes_map(const void* x, int rows) {
  TensorMapSpec spec{.base = x,
                     .dtype = DType::u8,
                     .dims = {64, static_cast<uint64_t>(rows)},
                     .strides = {64},
                     .box = {128, static_cast<uint32_t>(rows)},
                     .swizzle = TmaSwizzle::kBytes128};
  return make_tensor_map(spec);
}

template <class TypeA, class TypeB>
void launch_wgmma_half_lines(const void* a, const void* b, float* c, int n) {
  const TensorMap a_map = bytes_map(a, 64), b_map = bytes_map(b, n);
  if (n == 64) {
    WEFT_LAUNCH((wgmma_half_lines_kernel<TypeA, TypeB, 64>), 1, 128, 128 * 128, nullptr, a_map,
                b_map, c);
  } else {
    WEFT_LAUNCH((wgmma_half_lines_kernel<TypeA, TypeB, 128>), 1, 128, 192 * 128, nullptr, a_map,
                b_map, c);
  }
}

TensorMap operand_map(const uint16_t* x, int rows, bool mn_major) {
  const auto n = static_cast<uint64_t>(rows);
  TensorMapSpec spec{.base = x, .dtype = DType::bf16, .swizzle = TmaSwizzle::kBytes128};
  if (mn_major) {  // [32, rows], 64 at a time
    spec.dims[0] = n;
    spec.dims[1] = 32;
    spec.strides[0] = n * 2;
    spec.box[0] = 64;
    spec.box[1] = 32;
  } else {  // [rows, 32]; half of each row of 128 bytes stays zero
    spec.dims[0] = 32;
    spec.dims[1] = n;
    spec.strides[0] = 64;
    spec.box[0] = 64;
    spec.box[1] = static_cast<uint32_t>(rows);
  }
  return make_tensor_map(spec);
}

template <int kN, Major kA, Major kB>
void launch_wgmma(const uint16_t* a, const uint16_t* b, float* c) {
  WEFT_LAUNCH((wgmma_kernel<kN, kA, kB>), 1, 128, 8192 + kN * 128, nullptr,
              operand_map(a, 64, kA == Major::kMn), operand_map(b, kN, kB == Major::kMn), c);
}

template <int kN>
void launch_wgmma(const uint16_t* a, const uint16_t* b, float* c, bool a_mn, bool b_mn) {
  if (a_mn && b_mn) launch_wgmma<kN, Major::kMn, Major::kMn>(a, b, c);
  if (a_mn && !b_mn) launch_wgmma<kN, Major::kMn, Major::kK>(a, b, c);
  if (!a_mn && b_mn) launch_wgmma<kN, Major::kK, Major::kMn>(a, b, c);
  if (!a_mn && !b_mn) launch_wgmma<kN, Major::kK, Major::kK>(a, b, c);
}

__global__ void tma_copy_kernel(const __grid_constant__ TensorMap from,
                                const __grid_constant__ TensorMap to) {
  WEFT_DYNAMIC_SHARED(char, tile);
  WEFT_SHARED(uint64_t, barrier);
  if (threadIdx.x != 0) return;
  mbarrier_init(&barrier, 1);
  fence_mbarrier_init();
  const int x = static_cast<int>(blockIdx.x) * 8 - 3, y = static_cast<int>(blockIdx.y) * 16 - 5;
  mbarrier_arrive_expect_tx(&barrier, 8 * 16 * 4);
  tma_load_2d(tile, &from, &barrier, x, y);
  mbarrier_wait(&barrier, 0);
  tma_store_2d(&to, tile, x, y);
  tma_store_commit();
  tma_store_wait_read<0>();
}

/// Thread 0 copies; the others may wait before it arrives.
__global__ void late_arrival_kernel(const float* x, float* y) {
  WEFT_SHARED(float, tile, [4]);
  WEFT_SHARED(uint64_t, barrier);
  if (threadIdx.x == 0) {
    mbarrier_init(&barrier, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    cp_async<16>(tile, x);
    cp_async_mbarrier_arrive(&barrier);
  }
  mbarrier_wait(&barrier, 0);
  y[threadIdx.x] = tile[threadIdx.x % 4];
}

__global__ void columns_kernel(float* y, int pitch) {
  WEFT_DYNAMIC_SHARED(float, tile);
  for (int i = 0; i < 32; ++i) tile[i * pitch + static_cast<int>(threadIdx.x)] = 1;
  __syncwarp();
  y[threadIdx.x] = tile[static_cast<int>(threadIdx.x) * pitch];
}

}  // namespace

void run_mma_bf16(const uint16_t* a, const uint16_t* b, float* c) {
  WEFT_LAUNCH(mma_bf16_kernel, 1, 32, 0, nullptr, a, b, c);
}
void run_mma_f16_k8(const uint16_t* a, const uint16_t* b, float* c) {
  WEFT_LAUNCH(mma_f16_k8_kernel, 1, 32, 0, nullptr, a, b, c);
}
void run_mma_tf32(const float* a, const float* b, float* c) {
  WEFT_LAUNCH(mma_tf32_kernel, 1, 32, 0, nullptr, a, b, c);
}
void run_mma_e4m3(const uint8_t* a, const uint8_t* b, float* c) {
  WEFT_LAUNCH(mma_e4m3_kernel, 1, 32, 0, nullptr, a, b, c);
}
void run_ldmatrix(const uint16_t* a, const uint16_t* b, float* c) {
  WEFT_LAUNCH(ldmatrix_kernel, 1, 32, 0, nullptr, a, b, c);
}
void run_wgmma(const uint16_t* a, const uint16_t* b, float* c, int n, bool a_mn, bool b_mn) {
  if (n == 64) launch_wgmma<64>(a, b, c, a_mn, b_mn);
  if (n == 128) launch_wgmma<128>(a, b, c, a_mn, b_mn);
  if (n == 256) launch_wgmma<256>(a, b, c, a_mn, b_mn);
}
void run_wgmma_of_registers(const uint16_t* a, const uint16_t* b, float* c, int n) {
  const TensorMap map = operand_map(b, n, true);
  if (n == 64) {
    WEFT_LAUNCH(wgmma_of_registers_kernel<64>, 1, 128, 4096, nullptr, a, map, c);
  } else {
    WEFT_LAUNCH(wgmma_of_registers_kernel<80>, 1, 128, 8192, nullptr, a, map, c);
  }
}
void run_wgmma_fp8(const uint8_t* a, bool a_is_e4m3, const uint8_t* b, bool b_is_e4m3, float* c,
                   int n) {
  if (a_is_e4m3) {
    b_is_e4m3 ? launch_wgmma_half_lines<E4m3, E4m3>(a, b, c, n)
              : launch_wgmma_half_lines<E4m3, E5m2>(a, b, c, n);
  } else {
    b_is_e4m3 ? launch_wgmma_half_lines<E5m2, E4m3>(a, b, c, n)
              : launch_wgmma_half_lines<E5m2, E5m2>(a, b, c, n);
  }
}
void run_wgmma_tf32(const float* a, const float* b, float* c, int n) {
  launch_wgmma_half_lines<ptx::Tf32, ptx::Tf32>(a, b, c, n);
}
void run_tma_copy(const float* x, float* y, int rows, int swizzle) {
  TensorMapSpec spec{.base = x,
                     .dtype = DType::f32,
                     .dims = {64, static_cast<uint64_t>(rows)},
                     .strides = {256},
                     .box = {8, 16},
                     .swizzle = static_cast<TmaSwizzle>(swizzle)};
  const TensorMap from = make_tensor_map(spec);
  spec.base = y;
  WEFT_LAUNCH(tma_copy_kernel, dim3(9, static_cast<unsigned>(rows / 16 + 1)), 32, 512, nullptr,
              from, make_tensor_map(spec));
}
void run_late_arrival(const float* x, float* y) {
  WEFT_LAUNCH(late_arrival_kernel, 1, 64, 0, nullptr, x, y);
}
void run_columns(float* y, int pitch) {
  WEFT_LAUNCH(columns_kernel, 1, 32, static_cast<size_t>(32 * pitch) * sizeof(float), nullptr, y,
              pitch);
}

}  // namespace weft::kernels
