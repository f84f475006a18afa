// Plain loops in long double. Bound: n squares and their sum in f64, of which all terms are
// positive, carry gamma_{n+1} of the sum, half of it after the root, and the root's own rounding
// (numerics/error_bounds.h).
#include <cmath>

#include "kernels/multi_tensor_norm/multi_tensor_norm.h"
#include "numerics/error_bounds.h"

namespace weft::kernels {

std::vector<Expected> multi_tensor_norm_reference(const MultiTensorNormProblem& p) {
  if (p.is_of_each()) {
    Expected each;
    for (const Tensor& tensor : p.tensors) {
      const Tensor scalar = Tensor::empty({}, p.norm.dtype());
      const Expected one = multi_tensor_norm_reference({.tensors = {tensor}, .norm = scalar})[0];
      each.add(one.values[0], one.bounds[0]);
    }
    return {each};
  }
  long double sum = 0;
  double n = 0;
  for (const Tensor& tensor : p.tensors) {
    for (double x : tensor.to_vector()) {
      sum += static_cast<long double>(x) * x;
      ++n;
    }
  }
  const double norm = static_cast<double>(std::sqrt(sum));
  if (!std::isfinite(norm)) return {{{norm}, {0}}};
  const double error = norm * numerics::gamma(n + 4, 0x1p-53);
  return {{{norm}, {norm == 0 ? 0 : error + numerics::rounding_error(norm, p.norm.dtype())}}};
}

}  // namespace weft::kernels
