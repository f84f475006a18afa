// A plugin for the CPU: softmax forward, as plain loops.
#include <weft/core/parallel.h>
#include <weft/kernels/plugin.h>
#include <weft/kernels/softmax/softmax.h>

#include <cmath>

namespace weft::kernels {

bool softmax_fits_loop(const SoftmaxProblem& p) {
  return !p.backward() && !p.log && p.x.is_contiguous() && p.y.is_contiguous() &&
         wrap_dim(p.axis, p.y.dim(), "softmax") == p.y.dim() - 1;
}

void softmax_cpu_loop(const SoftmaxProblem& p) {
  if (p.y.numel() == 0) return;
  const int64_t n = p.y.shape().back();
  parallel_for(p.y.numel() / n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const x = p.x.data<float>() + row * n;
      float* const y = p.y.data<float>() + row * n;
      float max = -INFINITY, sum = 0;
      for (int64_t i = 0; i < n; ++i) max = std::max(max, x[i]);
      for (int64_t i = 0; i < n; ++i) sum += y[i] = std::exp(x[i] - max);
      for (int64_t i = 0; i < n; ++i) y[i] /= sum;
    }
  });
}

}  // namespace weft::kernels

WEFT_PLUGIN(softmax, softmax_cpu_loop, cpu, (DTypeSet{DType::f32}), softmax_fits_loop)
