// A thread draws one block of four words and makes four elements of it, in f64 as the CPU does.
// Used to initialise, not in a training step.
#include <numbers>

#include "core/philox.h"
#include "core/stream.h"
#include "kernels/copy/copy.h"
#include "kernels/device/elements.cuh"
#include "kernels/device/warp.cuh"
#include "kernels/random/random.h"

namespace weft::kernels {
namespace {

constexpr int kThreads = 256;

struct RandomArguments {
  Elements y;
  int64_t n;
  Distribution distribution;
  double low, high, mean, std, p;
  double below_high;  // the largest number of y's dtype that is sure to lie below high
  bool keeps_below;
  uint64_t seed, stream, offset;
};

__device__ double unit(uint32_t word) { return (word + 0.5) * 0x1p-32; }

__global__ void __launch_bounds__(kThreads) random_kernel(RandomArguments a) {
  const int64_t blocks = (a.n + 3) / 4;
  for (int64_t b = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; b < blocks;
       b += static_cast<int64_t>(gridDim.x) * kThreads) {
    const auto words = philox4x32(a.seed, a.stream, a.offset + static_cast<uint64_t>(b));
    double out[4];
    if (a.distribution == Distribution::kNormal) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const double radius = std::sqrt(-2 * std::log(unit(words[i])));
        const double angle = 2 * std::numbers::pi * unit(words[i + 1]);
        out[i] = a.mean + a.std * radius * std::cos(angle);
        out[i + 1] = a.mean + a.std * radius * std::sin(angle);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const double u = unit(words[i]);
        out[i] = a.distribution == Distribution::kUniform ? a.low + (a.high - a.low) * u
                 : a.distribution == Distribution::kBernoulli
                     ? (u < a.p ? 1.0 : 0.0)
                     : a.low + std::floor(u * (a.high - a.low));
      }
    }
    for (int i = 0; i < 4 && 4 * b + i < a.n; ++i) {
      store_one(a.y, 4 * b + i, out[i]);
      if (!a.keeps_below) continue;
      // A uniform number just below `high` may round up to it in a narrow dtype.
      if (load_one<double>(a.y, 4 * b + i) >= a.high) store_one(a.y, 4 * b + i, a.below_high);
    }
  }
}

}  // namespace

void random_cuda_philox(const RandomProblem& p) {
  if (p.y.numel() == 0) return;
  const Tensor y = contiguous_output(p.y);
  const bool keeps_below = is_floating(p.dtype()) && p.distribution == Distribution::kUniform;
  // One unit in the last place towards zero, or away from it, lies below `high`.
  const double step =
      keeps_below ? 2 * unit_roundoff(p.dtype()) * std::max(std::abs(p.high), 1e-30) : 0;
  const RandomArguments arguments{
      Elements(y), y.numel(),     p.distribution, p.low,  p.high,   p.mean,  p.std,
      p.p,         p.high - step, keeps_below,    p.seed, p.stream, p.offset};
  WEFT_LAUNCH(random_kernel, blocks_for(y.numel(), 4 * kThreads), kThreads, 0,
              current_stream_handle(p.device()), arguments);
  finish_output(y, p.y);
}

}  // namespace weft::kernels
