// A thread takes 4 pixels of a row at a time where rows allow it; the table lies in shared memory.
// What is the same for all images is uniform over the grid. Memory-bound: a byte in, 2 or 4 out.
#include "core/stream.h"
#include "kernels/device/elements.cuh"
#include "kernels/device/warp.cuh"
#include "kernels/normalize_images/normalize_images.h"

namespace weft::kernels {
namespace {

constexpr int kThreads = 256, kValues = 3 * 256;

struct Rectangle {
  int top, left, height, width;

  __device__ bool contains(int h, int w) const {
    return h >= top && h < top + height && w >= left && w < left + width;
  }
};

struct ImagesArguments {
  const uint8_t* x;
  const float* values;
  const Rectangle* erased;  // may be null
  Numbers y;
  int images, height, width;
  bool mixes;
  float keep;
  Rectangle cut;
};

/// Pixels w .. w + n of row h of channel c of an image.
template <int n>
__device__ __forceinline__ void read_pixels(const ImagesArguments& p, const float* table, int image,
                                            int c, int h, int w, float (&u)[n]) {
  const int64_t i =
      ((static_cast<int64_t>(image) * 3 + c) * p.height + h) * static_cast<int64_t>(p.width) + w;
  uint8_t bytes[n];
  elements::load_as<uint8_t, n>(p.x, i, bytes);
#pragma unroll
  for (int k = 0; k < n; ++k) u[k] = table[256 * c + bytes[k]];
  if (!p.erased) return;
  const Rectangle erased = p.erased[image];
#pragma unroll
  for (int k = 0; k < n; ++k) {
    if (erased.contains(h, w + k)) u[k] = 0;
  }
}

/// Thread t of the grid owns the groups of n pixels t, t + threads, ... Index is uint32_t where it
/// suffices: divisions of 64 bits are slow.
template <class Index, int n>
__global__ void __launch_bounds__(kThreads) normalize_images_kernel(ImagesArguments p) {
  WEFT_SHARED(float, table, [kValues]);
  for (int i = static_cast<int>(threadIdx.x); i < kValues; i += kThreads) table[i] = p.values[i];
  __syncthreads();
  const Index groups = p.width / n, height = p.height;
  const int64_t all = static_cast<int64_t>(p.images) * 3 * p.height * (p.width / n);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < all;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const Index row = static_cast<Index>(i) / groups, plane = row / height, owner = plane / 3;
    const int w = static_cast<int>(static_cast<Index>(i) - row * groups) * n;
    const int h = static_cast<int>(row - plane * height), c = static_cast<int>(plane - owner * 3);
    const int image = static_cast<int>(owner);
    float u[n];
    read_pixels(p, table, image, c, h, w, u);
    if (p.mixes) {
      float other[n];
      read_pixels(p, table, image > 0 ? image - 1 : p.images - 1, c, h, w, other);
#pragma unroll
      for (int k = 0; k < n; ++k) {
        if (p.keep != 1) u[k] = p.keep * u[k] + (1 - p.keep) * other[k];
        if (p.cut.contains(h, w + k)) u[k] = other[k];
      }
    }
    store(p.y, static_cast<int64_t>(row) * p.width + w, u);
  }
}

}  // namespace

void normalize_images_cuda_table(const NormalizeImagesProblem& p) {
  if (p.x.numel() == 0) return;
  const ImagesArguments arguments{
      .x = p.x.data<uint8_t>(),
      .values = p.values.data<float>(),
      .erased = p.erased.defined() ? static_cast<const Rectangle*>(p.erased.raw()) : nullptr,
      .y = Numbers(p.y),
      .images = static_cast<int>(p.x.size(0)),
      .height = static_cast<int>(p.x.size(2)),
      .width = static_cast<int>(p.x.size(3)),
      .mixes = p.mixes(),
      .keep = p.keep,
      .cut = {p.cut_top, p.cut_left, p.cut_height, p.cut_width}};
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  constexpr int kVector = 4;
  const bool is_aligned_throughout =
      arguments.width % kVector == 0 && is_aligned(p.x, kVector) && is_aligned(p.y, kVector);
  if (p.x.numel() >= int64_t{1} << 31) {
    WEFT_LAUNCH((normalize_images_kernel<uint64_t, 1>), blocks_for(p.x.numel(), kThreads), kThreads,
                0, stream, arguments);
  } else if (is_aligned_throughout) {
    WEFT_LAUNCH((normalize_images_kernel<uint32_t, kVector>),
                blocks_for(p.x.numel(), kThreads * kVector), kThreads, 0, stream, arguments);
  } else {
    WEFT_LAUNCH((normalize_images_kernel<uint32_t, 1>), blocks_for(p.x.numel(), kThreads), kThreads,
                0, stream, arguments);
  }
}

}  // namespace weft::kernels
