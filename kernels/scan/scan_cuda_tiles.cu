// A block walks a line in tiles of 256 elements, a thread each. Running sums of a warp's lanes are
// formed by shuffles (Hillis and Steele, "Data parallel algorithms", 1986), the sums of the warps
// before it and of the tiles before that are added on top: the order depends on the length alone.
// f64 or i64. Memory-bound where there are many lines; one long line keeps one block busy.
#include "core/stream.h"
#include "kernels/device/elements.cuh"
#include "kernels/device/warp.cuh"
#include "kernels/scan/scan.h"

namespace weft::kernels {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

struct Scanning {
  Elements x, y;
  int64_t lines, size;
  int dims;
  int64_t shape[kMaxDims], x_strides[kMaxDims], y_strides[kMaxDims];
  int64_t x_first, y_first, x_step, y_step;
};

/// Integers wrap around.
template <class Acc>
__device__ Acc plus(Acc a, Acc b) {
  using Ring = std::conditional_t<std::is_integral_v<Acc>, uint64_t, Acc>;
  return static_cast<Acc>(static_cast<Ring>(a) + static_cast<Ring>(b));
}

template <class Acc>
__global__ void __launch_bounds__(kThreads) scan_kernel(Scanning s) {
  WEFT_SHARED(Acc, sums, [kWarps]);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  for (int64_t line = blockIdx.x; line < s.lines; line += gridDim.x) {
    int64_t from = s.x_first, to = s.y_first, rest = line;
    for (int d = s.dims - 1; d >= 0; --d) {
      from += rest % s.shape[d] * s.x_strides[d];
      to += rest % s.shape[d] * s.y_strides[d];
      rest /= s.shape[d];
    }
    Acc before = 0;  // the tiles so far
    for (int64_t first = 0; first < s.size; first += kThreads) {
      const int64_t i = first + thread;
      Acc sum = i < s.size ? load_one<Acc>(s.x, from + i * s.x_step) : Acc{0};
#pragma unroll
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const Acc other = __shfl_up_sync(kAllLanes, sum, distance);
        if (lane >= distance) sum = plus(other, sum);
      }
      __syncthreads();  // the last tile's sums are read
      if (lane == kWarp - 1) sums[warp] = sum;
      __syncthreads();
      Acc base = before;
      for (int w = 0; w < kWarps; ++w) {
        if (w == warp) sum = plus(base, sum);
        base = plus(base, sums[w]);
      }
      before = base;
      if (i < s.size) store_one(s.y, to + i * s.y_step, sum);
    }
  }
}

}  // namespace

void scan_cuda_tiles(const ScanProblem& p) {
  if (p.x.numel() == 0) return;
  const int axis = wrap_dim(p.axis, p.x.dim(), "scan");
  Scanning s = {.x = Elements(p.x), .y = Elements(p.y)};
  s.size = p.x.shape()[axis];
  s.lines = p.x.numel() / s.size;
  for (int d = 0; d < p.x.dim(); ++d) {
    if (d == axis) continue;
    s.shape[s.dims] = p.x.shape()[d];
    s.x_strides[s.dims] = p.x.strides()[d];
    s.y_strides[s.dims] = p.y.strides()[d];
    ++s.dims;
  }
  const int64_t sign = p.reverse ? -1 : 1, first = p.reverse ? s.size - 1 : 0;
  s.x_first = first * p.x.strides()[axis];
  s.y_first = first * p.y.strides()[axis];
  s.x_step = sign * p.x.strides()[axis];
  s.y_step = sign * p.y.strides()[axis];
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  if (is_floating(p.dtype())) {
    WEFT_LAUNCH(scan_kernel<double>, blocks_for(s.lines, 1), kThreads, 0, stream, s);
  } else {
    WEFT_LAUNCH(scan_kernel<int64_t>, blocks_for(s.lines, 1), kThreads, 0, stream, s);
  }
}

}  // namespace weft::kernels
