// A thread for each element. Memory-bound.
#include "core/stream.h"
#include "kernels/cube/cube.h"
#include "kernels/device/cuda.h"

namespace weft::kernels {
namespace {

__global__ void cube_kernel(const float* x, float* y, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * x[i] * x[i];
}

}  // namespace

void cube_cuda_threads(const CubeProblem& p) {
  constexpr int kThreads = 128;
  const int64_t n = p.x.numel();
  if (n == 0) return;
  WEFT_LAUNCH(cube_kernel, static_cast<unsigned>((n + kThreads - 1) / kThreads), kThreads, 0,
              current_stream_handle(p.device()), p.x.data<float>(), p.y.data<float>(), n);
}

}  // namespace weft::kernels
