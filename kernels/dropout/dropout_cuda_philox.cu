// A thread draws one block of four words and keeps or drops four elements. The words are the CPU's,
// so the mask is. Bound by the generator's multiplications below about 2 bytes an element, else by
// memory.
#include "core/philox.h"
#include "core/stream.h"
#include "kernels/copy/copy.h"
#include "kernels/device/elements.cuh"
#include "kernels/device/instances.h"
#include "kernels/device/warp.cuh"
#include "kernels/dropout/dropout.h"

namespace weft::kernels {
namespace {

constexpr int kThreads = 256, kWords = 4;

struct DropoutArguments {
  Numbers x, y;
  int64_t n;
  bool aligned;
  double factor;
  uint32_t threshold;
  uint64_t seed, stream, offset;
  const int64_t* moved;  // may be null
};

template <class Acc>
__global__ void __launch_bounds__(kThreads) dropout_kernel(DropoutArguments p) {
  const Acc factor = static_cast<Acc>(p.factor);
  const uint64_t offset = p.offset + (p.moved ? static_cast<uint64_t>(*p.moved) : 0);
  const int64_t blocks = (p.n + kWords - 1) / kWords;
  for (int64_t b = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; b < blocks;
       b += static_cast<int64_t>(gridDim.x) * kThreads) {
    const auto words = philox4x32(p.seed, p.stream, offset + static_cast<uint64_t>(b));
    const int64_t i = b * kWords;
    const auto kept = [&](int k, Acc x) {
      return words[k] >> 9 >= p.threshold ? x * factor : Acc{0};
    };
    if (p.aligned && i + kWords <= p.n) {
      Acc values[kWords];
      load(p.x, i, values);
#pragma unroll
      for (int k = 0; k < kWords; ++k) values[k] = kept(k, values[k]);
      store(p.y, i, values);
    } else {
      for (int k = 0; k < kWords && i + k < p.n; ++k) {
        store_one(p.y, i + k, kept(k, load_one<Acc>(p.x, i + k)));
      }
    }
  }
}

}  // namespace

void dropout_cuda_philox(const DropoutProblem& p) {
  if (p.x.numel() == 0) return;
  const Tensor x = contiguous(p.x);
  const Tensor y = contiguous_output(p.y);
  const DropoutArguments arguments{.x = Numbers(x),
                                   .y = Numbers(y),
                                   .n = x.numel(),
                                   .aligned = is_aligned(x, kWords) && is_aligned(y, kWords),
                                   .factor = p.factor(),
                                   .threshold = p.threshold(),
                                   .seed = p.seed,
                                   .stream = p.stream,
                                   .offset = p.offset,
                                   .moved = p.moved.defined() ? p.moved.data<int64_t>() : nullptr};
  const unsigned grid = blocks_for(x.numel(), kThreads * kWords);
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  with_arithmetic_zero(p.dtype(), [&](auto zero) {
    WEFT_LAUNCH(dropout_kernel<decltype(zero)>, grid, kThreads, 0, stream, arguments);
  });
  finish_output(y, p.y);
}

}  // namespace weft::kernels
