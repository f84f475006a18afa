// Each thread takes vectors of 8 elements, a grid apart from each other, and keeps the greatest
// magnitude it meets, as bits: they order as the numbers do, with NaNs above all. A block's threads
// join theirs, and one more block those of all blocks; a maximum is the same in any order.
// Memory-bound: the conversion is the integer arithmetic of core/float_formats.h, so that codes are
// the CPU's, NaNs' signs included.
#include "core/stream.h"
#include "kernels/copy/copy.h"
#include "kernels/device/elements.cuh"
#include "kernels/device/warp.cuh"
#include "kernels/fp8_quantize/fp8_quantize.h"

namespace weft::kernels {
namespace {

constexpr int kThreads = 256, kVector = 8;

struct Codes {
  uint8_t* codes = nullptr;  // null: the maximum alone
  bool is_e4m3 = true;
};

__device__ __forceinline__ uint8_t code_of(float x, bool is_e4m3) {
  return is_e4m3 ? f8e4m3(x, Overflow::kSaturate).bits : f8e5m2(x, Overflow::kSaturate).bits;
}

/// Elements i .. i + n; returns the bits of the greatest magnitude.
template <int n>
__device__ __forceinline__ int quantize(const Numbers& x, const Codes& y, float scale, int64_t i) {
  float values[n];
  load(x, i, values);
  int greatest = 0;
#pragma unroll
  for (int k = 0; k < n; ++k) {
    greatest = max(greatest, static_cast<int>(__float_as_uint(values[k]) & 0x7fffffffu));
  }
  if (!y.codes) return greatest;
  Pack<uint8_t, n> pack;
#pragma unroll
  for (int k = 0; k < n; ++k) pack.values[k] = code_of(values[k] * scale, y.is_e4m3);
  *reinterpret_cast<Pack<uint8_t, n>*>(y.codes + i) = pack;
  return greatest;
}

__device__ __forceinline__ int greater(int a, int b) { return max(a, b); }

__global__ void __launch_bounds__(kThreads)
    quantize_kernel(Numbers x, Codes y, float scale, int64_t n, bool aligned, int* maxima) {
  int greatest = 0;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t whole = aligned ? n / kVector * kVector : 0;
  for (int64_t i = thread * kVector; i < whole; i += step * kVector) {
    greatest = max(greatest, quantize<kVector>(x, y, scale, i));
  }
  for (int64_t i = whole + thread; i < n; i += step) {
    greatest = max(greatest, quantize<1>(x, y, scale, i));
  }
  greatest = block_join<kThreads>(greatest, greater);
  if (maxima && threadIdx.x == 0) maxima[blockIdx.x] = greatest;
}

__global__ void __launch_bounds__(kThreads)
    join_maxima_kernel(const int* maxima, int count, float* amax) {
  int greatest = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    greatest = max(greatest, maxima[i]);
  }
  greatest = block_join<kThreads>(greatest, greater);
  if (threadIdx.x == 0) *amax = __uint_as_float(static_cast<unsigned>(greatest));
}

}  // namespace

void fp8_quantize_cuda_elements(const Fp8QuantizeProblem& p) {
  const Tensor x = contiguous(p.x);
  const int64_t n = x.numel();
  Codes y;
  if (p.y.defined()) {
    WEFT_ASSERT(p.y.is_contiguous() && p.y.shape() == x.shape());
    y = {static_cast<uint8_t*>(p.y.raw()), p.y.dtype() == DType::f8e4m3};
  }
  const unsigned blocks = n == 0 ? 0 : blocks_for(n, int64_t{kThreads} * kVector);
  Tensor maxima;
  if (p.amax.defined()) maxima = Tensor::empty({int64_t{blocks}}, DType::i32, p.device());
  int* const greatest = maxima.defined() ? maxima.data<int32_t>() : nullptr;
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  if (blocks > 0) {
    const bool aligned = is_aligned(x, kVector) && is_aligned(p.y, kVector);
    WEFT_LAUNCH(quantize_kernel, blocks, kThreads, 0, stream, Numbers(x), y,
                static_cast<float>(p.scale), n, aligned, greatest);
  }
  if (!maxima.defined()) return;
  WEFT_LAUNCH(join_maxima_kernel, 1, kThreads, 0, stream, greatest, static_cast<int>(blocks),
              p.amax.data<float>());
}

}  // namespace weft::kernels
