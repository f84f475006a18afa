// Forward: a thread for each output runs over its window. Backward: a thread for each pixel gathers
// from the windows that it may lie in, in increasing order of output, so that additions need no
// atomics. Memory-bound for the small windows of networks.
#include "core/stream.h"
#include "kernels/copy/copy.h"
#include "kernels/device/elements.cuh"
#include "kernels/device/instances.h"
#include "kernels/device/warp.cuh"
#include "kernels/pool2d/pool2d.h"

namespace weft::kernels {
namespace {

constexpr int kThreads = 256;

struct Pool {
  Numbers image, result;  // contiguous
  int32_t* indices;
  int64_t planes, H, W, P, Q;
  std::array<int64_t, 2> kernel, stride, padding, dilation;
  bool is_max, count_include_pad;

  /// How many elements the average of window (p, q) divides by.
  __device__ int64_t count(int64_t p, int64_t q) const {
    int64_t product = 1;
    const int64_t place[2] = {p, q}, size[2] = {H, W};
    for (int d = 0; d < 2; ++d) {
      const int64_t begin = place[d] * stride[d] - padding[d];
      int64_t n = 0;
      for (int64_t r = 0; r < kernel[d]; ++r) {
        const int64_t at = begin + r * dilation[d];
        n += count_include_pad ? at < size[d] + padding[d] : at >= 0 && at < size[d];
      }
      product *= n;
    }
    return product;
  }
};

template <class Acc>
__global__ void __launch_bounds__(kThreads) pool_kernel(Pool t) {
  const int64_t outputs = t.planes * t.P * t.Q;
  for (int64_t o = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; o < outputs;
       o += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t q = o % t.Q, p = o / t.Q % t.P, plane = o / (t.P * t.Q) * t.H * t.W;
    Acc best = -INFINITY, sum = 0;
    int64_t place = -1;
    for (int64_t r = 0; r < t.kernel[0]; ++r) {
      const int64_t h = p * t.stride[0] - t.padding[0] + r * t.dilation[0];
      if (h < 0 || h >= t.H) continue;
      for (int64_t s = 0; s < t.kernel[1]; ++s) {
        const int64_t w = q * t.stride[1] - t.padding[1] + s * t.dilation[1];
        if (w < 0 || w >= t.W) continue;
        const Acc x = load_one<Acc>(t.image, plane + h * t.W + w);
        sum += x;
        // The first maximum; a NaN is one.
        if (place < 0 || x > best || (x != x && best == best)) {
          best = x;
          place = h * t.W + w;
        }
      }
    }
    store_one(t.result, o, t.is_max ? best : sum / static_cast<Acc>(t.count(p, q)));
    if (t.is_max && t.indices) t.indices[o] = static_cast<int32_t>(place);
  }
}

/// The outputs [first, last] of one dimension whose windows may hold a pixel.
__device__ void windows_of(const Pool& t, int d, int64_t pixel, int64_t outputs, int64_t& first,
                           int64_t& last) {
  const int64_t reach = (t.kernel[d] - 1) * t.dilation[d], at = pixel + t.padding[d];
  first = at <= reach ? 0 : (at - reach + t.stride[d] - 1) / t.stride[d];
  last = at / t.stride[d];
  if (last > outputs - 1) last = outputs - 1;
}

template <class Acc>
__global__ void __launch_bounds__(kThreads) pool_backward_kernel(Pool t) {
  const int64_t pixels = t.planes * t.H * t.W;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < pixels;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t w = i % t.W, h = i / t.W % t.H, plane = i / (t.H * t.W) * t.P * t.Q;
    int64_t p0, p1, q0, q1;
    windows_of(t, 0, h, t.P, p0, p1);
    windows_of(t, 1, w, t.Q, q0, q1);
    Acc sum = 0;
    for (int64_t p = p0; p <= p1; ++p) {
      for (int64_t q = q0; q <= q1; ++q) {
        const int64_t o = plane + p * t.Q + q;
        if (t.is_max) {
          if (t.indices[o] == h * t.W + w) sum += load_one<Acc>(t.result, o);
        } else if ((h + t.padding[0] - p * t.stride[0]) % t.dilation[0] == 0 &&
                   (w + t.padding[1] - q * t.stride[1]) % t.dilation[1] == 0) {
          sum += load_one<Acc>(t.result, o) / static_cast<Acc>(t.count(p, q));
        }
      }
    }
    store_one(t.image, i, sum);
  }
}

}  // namespace

void pool2d_cuda_windows(const Pool2dProblem& p) {
  const Tensor image = p.backward() ? p.dx : contiguous(p.x);
  const Tensor result = p.backward() ? contiguous(p.dy) : p.y;
  const Pool t{.image = Numbers(image),
               .result = Numbers(result),
               .indices = p.indices.defined() ? p.indices.data<int32_t>() : nullptr,
               .planes = image.size(0) * image.size(1),
               .H = image.size(2),
               .W = image.size(3),
               .P = result.size(2),
               .Q = result.size(3),
               .kernel = p.kernel,
               .stride = p.stride,
               .padding = p.padding,
               .dilation = p.dilation,
               .is_max = p.kind == PoolKind::kMax,
               .count_include_pad = p.count_include_pad};
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  const int64_t n = p.backward() ? image.numel() : result.numel();
  if (n == 0) return;
  with_arithmetic_zero(p.dtype(), [&]<class Acc>(Acc) {
    const auto kernel = p.backward() ? pool_backward_kernel<Acc> : pool_kernel<Acc>;
    WEFT_LAUNCH(kernel, blocks_for(n, kThreads), kThreads, 0, stream, t);
  });
}

}  // namespace weft::kernels
