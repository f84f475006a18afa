// A plugin with a fault: thread 0 reads what the others wrote without waiting for them.
#include <weft/core/stream.h>
#include <weft/kernels/device/cuda.h>
#include <weft/kernels/plugin.h>
#include <weft/kernels/softmax/softmax.h>

namespace weft::kernels {
namespace {

constexpr int kThreads = 64;

__global__ void softmax_racing_kernel(const float* x, float* y, int n) {
  WEFT_SHARED(float, sums, [kThreads]);
  x += int64_t{blockIdx.x} * n;
  y += int64_t{blockIdx.x} * n;
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) sum += std::exp(x[i]);
  sums[threadIdx.x] = sum;
  if (threadIdx.x == 0) {
    for (int i = 1; i < kThreads; ++i) sums[0] += sums[i];  // the race
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += kThreads) y[i] = std::exp(x[i]) / sums[0];
}

bool softmax_fits_racing(const SoftmaxProblem& p) {
  return !p.backward() && !p.log && p.x.is_contiguous() && p.y.is_contiguous() &&
         wrap_dim(p.axis, p.y.dim(), "softmax") == p.y.dim() - 1;
}

}  // namespace

void softmax_cuda_racing(const SoftmaxProblem& p) {
  if (p.y.numel() == 0) return;
  const int64_t n = p.y.shape().back();
  WEFT_LAUNCH(softmax_racing_kernel, static_cast<unsigned>(p.y.numel() / n), kThreads, 0,
              current_stream_handle(p.device()), p.x.data<float>(), p.y.data<float>(),
              static_cast<int>(n));
}

}  // namespace weft::kernels

WEFT_PLUGIN(softmax, softmax_cuda_racing, cuda, (DTypeSet{DType::f32}), softmax_fits_racing)
