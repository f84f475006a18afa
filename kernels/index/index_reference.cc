// Plain loops. Moves are exact. A sum of n additions to an element in f32 (f64) carries at most
// gamma_n times the sum of magnitudes (numerics/error_bounds.h), and the rounding to the dtype;
// integers are exact.
#include <cmath>

#include "kernels/index/index.h"
#include "numerics/error_bounds.h"

namespace weft::kernels {

std::vector<Expected> index_reference(const IndexProblem& p) {
  const int axis = wrap_dim(p.axis, p.x.dim(), name(p.kind));
  const Indices indices = checked_indices(p);
  const Shape shape = p.moved();
  const auto row_major_offset = [](const Shape& at, const Shape& sizes) {
    int64_t offset = 0;
    for (int d = 0; d < sizes.size(); ++d) offset = offset * sizes[d] + at[d];
    return offset;
  };
  const std::vector<double> x = p.x.to_vector();
  Expected y{p.y.to_vector(), {}};
  std::vector<double> magnitude(y.values.size()), additions(y.values.size());
  for (size_t e = 0; e < y.values.size(); ++e) magnitude[e] = std::abs(y.values[e]);
  for (int64_t k = 0; k < numel(shape); ++k) {
    const Shape at = place_of(k, shape);
    Shape there = at;
    there[axis] = indices.list[p.by_slice() ? at[axis] : k];
    const double value = x[row_major_offset(p.reads() ? there : at, p.x.shape())];
    const int64_t to = row_major_offset(p.reads() ? at : there, p.y.shape());
    if (!p.adds()) {
      y.values[to] = value;
      continue;
    }
    y.values[to] += value;
    magnitude[to] += std::abs(value);
    additions[to] += 1;
  }
  const double u = p.dtype() == DType::f64 ? 0x1p-53 : 0x1p-24;
  for (size_t e = 0; e < y.values.size(); ++e) {
    const bool exact = additions[e] == 0 || !is_floating(p.dtype());
    const double error = numerics::sum_bound(additions[e], u, magnitude[e]);
    y.bounds.push_back(
        exact ? 0 : error + numerics::rounding_error(std::abs(y.values[e]) + error, p.dtype()));
  }
  return {y};
}

}  // namespace weft::kernels
