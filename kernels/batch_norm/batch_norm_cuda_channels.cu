// A block for each channel: two passes over its elements for the statistics, in f64, then one that
// writes. The block's 256 threads are joined in a fixed order. Memory-bound for large images; the
// number of channels is the number of blocks.
#include "core/stream.h"
#include "kernels/batch_norm/batch_norm.h"
#include "kernels/copy/copy.h"
#include "kernels/device/elements.cuh"
#include "kernels/device/warp.cuh"

namespace weft::kernels {
namespace {

constexpr int kThreads = 256;

struct Channels {
  Elements x, y, dy, dx;
  Elements weight, bias, mean, variance, dweight, dbias;
  int64_t N, C, inner;  // [N, C, inner], contiguous
  double eps;
  bool training;

  /// Calls f(offset) for this thread's elements of a channel.
  template <class F>
  __device__ void for_each(int64_t c, F f) const {
    for (int64_t i = threadIdx.x; i < N * inner; i += kThreads) {
      f((i / inner * C + c) * inner + i % inner);
    }
  }
  template <class F>
  __device__ double sum(int64_t c, F f) const {
    double total = 0;
    for_each(c, [&](int64_t at) { total += f(at); });
    return block_sum<kThreads>(total);
  }
};

__global__ void __launch_bounds__(kThreads) batch_norm_kernel(Channels t) {
  const double count = static_cast<double>(t.N * t.inner);
  for (int64_t c = blockIdx.x; c < t.C; c += gridDim.x) {
    double mean, variance;
    if (t.training) {
      mean = t.sum(c, [&](int64_t at) { return load_one<double>(t.x, at); }) / count;
      variance = t.sum(c, [&](int64_t at) {
        const double d = load_one<double>(t.x, at) - mean;
        return d * d;
      }) / count;
      if (threadIdx.x == 0) {
        store_one(t.mean, c, mean);
        store_one(t.variance, c, variance);
      }
    } else {
      mean = load_one<double>(t.mean, c);
      variance = load_one<double>(t.variance, c);
    }
    const double rstd = 1 / std::sqrt(variance + t.eps);
    const double scale = t.weight ? rstd * load_one<double>(t.weight, c) : rstd;
    const double shift = t.bias ? load_one<double>(t.bias, c) : 0;
    t.for_each(c, [&](int64_t at) {
      store_one(t.y, at, (load_one<double>(t.x, at) - mean) * scale + shift);
    });
  }
}

__global__ void __launch_bounds__(kThreads) batch_norm_backward_kernel(Channels t) {
  const double count = static_cast<double>(t.N * t.inner);
  for (int64_t c = blockIdx.x; c < t.C; c += gridDim.x) {
    const double mean = load_one<double>(t.mean, c);
    const double rstd = 1 / std::sqrt(load_one<double>(t.variance, c) + t.eps);
    const auto h = [&](int64_t at) { return (load_one<double>(t.x, at) - mean) * rstd; };
    const auto dy = [&](int64_t at) { return load_one<double>(t.dy, at); };
    const double dbias = t.sum(c, dy);
    const double dweight = t.sum(c, [&](int64_t at) { return dy(at) * h(at); });
    if (threadIdx.x == 0) {
      if (t.dweight) store_one(t.dweight, c, dweight);
      if (t.dbias) store_one(t.dbias, c, dbias);
    }
    if (!t.dx) continue;
    const double scale = t.weight ? rstd * load_one<double>(t.weight, c) : rstd;
    t.for_each(c, [&](int64_t at) {
      const double centred =
          t.training ? dy(at) - dbias / count - h(at) * (dweight / count) : dy(at);
      store_one(t.dx, at, scale * centred);
    });
  }
}

}  // namespace

void batch_norm_cuda_channels(const BatchNormProblem& p) {
  const Tensor x = contiguous(p.x), dy = p.dy.defined() ? contiguous(p.dy) : p.dy;
  const int64_t channels = x.size(1);
  if (channels == 0) return;
  const Channels t{.x = Elements(x),
                   .y = Elements(p.y),
                   .dy = Elements(dy),
                   .dx = Elements(p.dx),
                   .weight = Elements(p.weight),
                   .bias = Elements(p.bias),
                   .mean = Elements(p.mean),
                   .variance = Elements(p.variance),
                   .dweight = Elements(p.dweight),
                   .dbias = Elements(p.dbias),
                   .N = x.size(0),
                   .C = channels,
                   .inner = x.size(0) == 0 ? 0 : x.numel() / (x.size(0) * channels),
                   .eps = p.eps,
                   .training = p.training};
  const auto kernel = p.backward() ? batch_norm_backward_kernel : batch_norm_kernel;
  WEFT_LAUNCH(kernel, blocks_for(channels, 1), kThreads, 0, current_stream_handle(p.device()), t);
}

}  // namespace weft::kernels
