#include "kernels/device/approx_test.h"

#include "core/stream.h"
#include "kernels/device/approx.h"

namespace weft::kernels {
namespace {

template <class Function>
__global__ void approximate_kernel(Function function, const float* x, float* y, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) y[i] = function(x[i]);
}

struct Ex2 {
  __device__ float operator()(float x) const { return ptx::ex2_approx(x); }
};
struct Lg2 {
  __device__ float operator()(float x) const { return ptx::lg2_approx(x); }
};
struct Rcp {
  __device__ float operator()(float x) const { return ptx::rcp_approx(x); }
};
struct Rsqrt {
  __device__ float operator()(float x) const { return ptx::rsqrt_approx(x); }
};
struct Tanh {
  __device__ float operator()(float x) const { return ptx::tanh_approx(x); }
};

template <class Function>
void approximate(const Tensor& x, const Tensor& y) {
  constexpr int kThreads = 256;
  const unsigned blocks = static_cast<unsigned>((x.numel() + kThreads - 1) / kThreads);
  WEFT_LAUNCH(approximate_kernel<Function>, blocks, kThreads, 0, current_stream_handle(x.device()),
              Function{}, x.data<float>(), y.data<float>(), x.numel());
}

}  // namespace

void ex2_approximations(const Tensor& x, const Tensor& y) { approximate<Ex2>(x, y); }
void lg2_approximations(const Tensor& x, const Tensor& y) { approximate<Lg2>(x, y); }
void rcp_approximations(const Tensor& x, const Tensor& y) { approximate<Rcp>(x, y); }
void rsqrt_approximations(const Tensor& x, const Tensor& y) { approximate<Rsqrt>(x, y); }
void tanh_approximations(const Tensor& x, const Tensor& y) { approximate<Tanh>(x, y); }

}  // namespace weft::kernels
