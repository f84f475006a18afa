// Kernels that use the emulator's basic vocabulary, for basics_test.cc.
#include "kernels/simt/basics_test.h"

#include "kernels/device/cuda.h"

namespace weft::simt {
namespace {

__device__ float block_sum(float value) {
  WEFT_SHARED(float, partial, [32]);
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x % 32] : 0.0f;
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

__global__ void sum_kernel(const float* x, float* y, int n) {
  float sum = 0;
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < n;
       i += static_cast<int>(gridDim.x * blockDim.x)) {
    sum += x[i];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) atomicAdd(y, sum);
}

template <int kTile>
__global__ void transpose_kernel(const int* x, int* y, int n) {
  WEFT_DYNAMIC_SHARED(int, tile);
  const int row = static_cast<int>(blockIdx.y) * kTile, col = static_cast<int>(blockIdx.x) * kTile;
  const int i = static_cast<int>(threadIdx.y), j = static_cast<int>(threadIdx.x);
  if (row + i < n && col + j < n) tile[i * (kTile + 1) + j] = x[(row + i) * n + col + j];
  __syncthreads();
  if (col + i < n && row + j < n) y[(col + i) * n + row + j] = tile[j * (kTile + 1) + i];
}

__global__ void early_exit_kernel(int* y) {
  if (threadIdx.x >= 40) return;
  WEFT_SHARED(int, total);
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  atomicAdd(&total, 1);
  __syncthreads();
  y[threadIdx.x] = total;
}

__global__ void warp_kernel(unsigned* y) {
  const unsigned lane = threadIdx.x;
  y[lane] = __ballot_sync(0xffffffffu, lane % 3 == 0);
  y[32 + lane] = __match_any_sync(0xffffffffu, lane / 8);
  y[64 + lane] = __reduce_max_sync(0xffffffffu, lane * 7 % 32);
  y[96 + lane] = __shfl_up_sync(0xffffffffu, lane, 1, 8);
  y[128 + lane] = __shfl_down_sync(0xffffffffu, lane, 3);
  y[160 + lane] = __shfl_sync(0xffffffffu, lane, 5, 16);
  const unsigned half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  y[192 + lane] = __shfl_xor_sync(half, lane, 1);
}

__global__ void deadlock_kernel() {
  if (threadIdx.x == 1) {
    __syncwarp(0x3u);
  } else {
    __syncthreads();
  }
}

__global__ void divergent_kernel(int* y) {
  if (threadIdx.x < 16) {
    y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
  } else {
    y[threadIdx.x] = __any_sync(0xffffffffu, 1);
  }
}

}  // namespace

void run_sum(const float* x, float* y, int n) {
  WEFT_LAUNCH(sum_kernel, 3, 128, 0, nullptr, x, y, n);
}

void run_transpose(const int* x, int* y, int n) {
  constexpr int kTile = 8;
  const unsigned tiles = static_cast<unsigned>((n + kTile - 1) / kTile);
  WEFT_LAUNCH(transpose_kernel<kTile>, dim3(tiles, tiles), dim3(kTile, kTile),
              kTile * (kTile + 1) * sizeof(int), nullptr, x, y, n);
}

void run_early_exit(int* y) { WEFT_LAUNCH(early_exit_kernel, 1, 64, 0, nullptr, y); }
void run_warp(unsigned* y) { WEFT_LAUNCH(warp_kernel, 1, 32, 0, nullptr, y); }
void run_deadlock() { WEFT_LAUNCH(deadlock_kernel, 1, 32, 0, nullptr); }
void run_divergent(int* y) { WEFT_LAUNCH(divergent_kernel, 1, 32, 0, nullptr, y); }

}  // namespace weft::simt
