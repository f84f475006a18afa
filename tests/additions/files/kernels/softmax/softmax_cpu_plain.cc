// A row at a time, in f64.
#include <cmath>
#include <limits>

#include "core/view.h"
#include "kernels/copy/copy.h"
#include "kernels/softmax/softmax.h"

namespace weft::kernels {

bool softmax_is_forward(const SoftmaxProblem& p) {
  return !p.backward() && p.dtype() == DType::f64 && p.x.is_contiguous() && p.y.is_contiguous() &&
         p.axis == p.x.dim() - 1;
}

void softmax_cpu_plain(const SoftmaxProblem& p) {
  const int64_t n = p.x.shape().back(), rows = n == 0 ? 0 : p.x.numel() / n;
  for (int64_t row = 0; row < rows; ++row) {
    const double* const x = p.x.data<double>() + row * n;
    double* const y = p.y.data<double>() + row * n;
    double most = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t i = 0; i < n; ++i) most = std::fmax(most, x[i]);
    for (int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - most);
    for (int64_t i = 0; i < n; ++i) {
      y[i] = p.log ? x[i] - most - std::log(sum) : std::exp(x[i] - most) / sum;
    }
  }
}

}  // namespace weft::kernels
