// Plain loops in f64. The bounds: with n terms in a row, unit roundoff u of f32 (f64 for f64) and
// an exp of relative error 2u, every exponential carries (|x - max| + 2) u, the sum gamma_n more,
// the quotient one rounding; the result is then rounded to its dtype (numerics/error_bounds.h).
#include <cmath>

#include "kernels/softmax/softmax.h"
#include "numerics/error_bounds.h"

namespace weft::kernels {

std::vector<Expected> softmax_reference(const SoftmaxProblem& p) {
  const int axis = wrap_dim(p.axis, p.y.dim(), "softmax");
  const int64_t n = p.y.shape()[axis];
  int64_t inner = 1;
  for (int d = axis + 1; d < p.y.dim(); ++d) inner *= p.y.shape()[d];
  using Values = std::vector<double>;
  const Values x = p.backward() ? Values() : p.x.to_vector();
  const Values y = p.backward() ? p.y.to_vector() : Values();
  const Values dy = p.backward() ? p.dy.to_vector() : Values();
  const double u = p.dtype() == DType::f64 ? 0x1p-53 : 0x1p-24;
  const double row_error = numerics::gamma(n + 8.0, u);
  Expected expected = Expected::of_size(p.y.numel());
  const int64_t rows = n == 0 ? 0 : p.y.numel() / n;
  for (int64_t row = 0; row < rows; ++row) {
    const auto at = [&](int64_t j) { return (row / inner * n + j) * inner + row % inner; };
    const auto put = [&](int64_t j, double value, double error) {
      expected.put(at(j), value, numerics::stored_bound(value, error, p.dtype()));
    };
    if (!p.backward()) {
      double max = -INFINITY, sum = 0;
      for (int64_t j = 0; j < n; ++j) max = std::max(max, x[at(j)]);
      for (int64_t j = 0; j < n; ++j) sum += std::exp(x[at(j)] - max);
      for (int64_t j = 0; j < n; ++j) {
        const double shifted = x[at(j)] - max;
        if (p.log) {
          put(j, shifted - std::log(sum), (std::abs(shifted) + std::log(sum) + 4) * u + row_error);
        } else {
          const double value = std::exp(shifted) / sum;
          // Below float's normal range the exponential may flush to zero.
          const double flushed = u > 0x1p-30 ? 0x1p-126 : 0;
          put(j, value,
              flushed + (value > 0 ? value * (row_error + 2 * std::abs(shifted) * u) : 0));
        }
      }
    } else {
      double sum = 0, magnitude = 0;
      for (int64_t j = 0; j < n; ++j) {
        const double term = p.log ? dy[at(j)] : dy[at(j)] * y[at(j)];
        sum += term;
        magnitude += std::abs(term);
      }
      for (int64_t j = 0; j < n; ++j) {
        const double g = dy[at(j)], out = y[at(j)];
        const double weight = p.log ? std::exp(out) : out;
        const double value = p.log ? g - weight * sum : weight * (g - sum);
        const double scale =
            p.log ? std::abs(g) + weight * magnitude : weight * (std::abs(g) + magnitude);
        put(j, value, scale * (row_error + 2 * std::abs(p.log ? out : 0) * u));
      }
    }
  }
  return {expected};
}

}  // namespace weft::kernels
