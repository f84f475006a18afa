// One multiplication in f32 (f64) and one rounding to the dtype: the bound of the elements is 0.
//
// The norm sums squares in long double, which holds those of f32 and narrower exactly. A variant
// adds n squares in f64 in any order: gamma_n of their sum (Higham, section 4.2), f64's own squares
// one rounding more, halved by the root, and one rounding to norm's dtype.
#include <cmath>

#include "kernels/multi_tensor_scale/multi_tensor_scale.h"
#include "numerics/error_bounds.h"

namespace weft::kernels {

std::vector<Expected> multi_tensor_scale_reference(const MultiTensorScaleProblem& p) {
  const double factor = p.factor_from.defined() ? p.factor_from.item() : p.factor;
  std::vector<Expected> result;
  bool is_finite = true;
  long double squares = 0;
  double count = 0;
  for (const Tensor& tensor : p.tensors) {
    std::vector<double> values = tensor.to_vector();
    visit_dtype(tensor.dtype(), [&]<class T>(TypeTag<T>) {
      for (double& x : values) {
        is_finite &= std::isfinite(x);
        if (factor != 1) {
          if constexpr (std::is_same_v<T, double>) {
            x *= factor;
          } else {
            x = to_double(T(static_cast<float>(x) * static_cast<float>(factor)));
          }
        }
        squares += static_cast<long double>(x) * x;
      }
    });
    count += static_cast<double>(values.size());
    result.push_back({values, std::vector<double>(values.size())});
  }
  if (p.found_inf.defined()) result.push_back({{is_finite ? 0.0 : 1.0}, {0}});
  if (p.norm.defined()) {
    const auto norm = static_cast<double>(std::sqrt(squares));
    const double error = numerics::gamma(count + 2, 0x1p-53) * norm;
    const double bound =
        std::isfinite(norm) ? error + numerics::rounding_error(norm, p.norm.dtype()) : 0;
    result.push_back({{norm}, {bound}});
  }
  return result;
}

}  // namespace weft::kernels
