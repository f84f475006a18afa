// Plain loops in f64 (i64 for integers). A sum of n numbers in f64, in any order, is off by at most
// gamma_n of f64 times the sum of magnitudes, the reference's own as much
// (numerics/error_bounds.h); the rounding to y's dtype comes on top. Integers are exact to 2^53.
#include <cmath>

#include "kernels/scan/scan.h"
#include "numerics/error_bounds.h"

namespace weft::kernels {

std::vector<Expected> scan_reference(const ScanProblem& p) {
  const int axis = wrap_dim(p.axis, p.x.dim(), "scan");
  const int64_t size = p.x.shape()[axis], step = contiguous_strides(p.x.shape())[axis];
  const std::vector<double> x = p.x.to_vector();
  Expected y = Expected::of_size(x.size());
  if (x.empty()) return {y};
  const bool exact = !is_floating(p.dtype());
  for (int64_t line = 0; line < p.x.numel() / size; ++line) {
    const int64_t first = line / step * size * step + line % step;
    double sum = 0, magnitude = 0;
    for (int64_t k = 0; k < size; ++k) {
      const int64_t at = first + (p.reverse ? size - 1 - k : k) * step;
      sum += x[at];
      magnitude += std::abs(x[at]);
      const double error =
          exact ? 0 : numerics::sum_bound(2 * static_cast<double>(k + 1), 0x1p-53, magnitude);
      y.put(at, std::isfinite(sum) ? sum : numerics::round_to(sum, p.y.dtype()),
            exact ? 0 : numerics::stored_bound(sum, error, p.y.dtype()));
    }
  }
  return {y};
}

}  // namespace weft::kernels
