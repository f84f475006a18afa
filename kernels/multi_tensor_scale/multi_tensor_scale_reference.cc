// One multiplication in f32 (f64) and one rounding to the dtype: the bound is 0.
#include <cmath>

#include "kernels/multi_tensor_scale/multi_tensor_scale.h"

namespace weft::kernels {

std::vector<Expected> multi_tensor_scale_reference(const MultiTensorScaleProblem& p) {
  std::vector<Expected> result;
  bool finite = true;
  for (const Tensor& tensor : p.tensors) {
    std::vector<double> values = tensor.to_vector();
    visit_dtype(tensor.dtype(), [&](auto tag) {
      using T = typename decltype(tag)::type;
      for (double& x : values) {
        finite &= std::isfinite(x);
        if (p.factor == 1) continue;
        if constexpr (std::is_same_v<T, double>) {
          x *= p.factor;
        } else {
          x = to_double(T(static_cast<float>(x) * static_cast<float>(p.factor)));
        }
      }
    });
    result.push_back({values, std::vector<double>(values.size())});
  }
  if (p.nonfinite.defined()) result.push_back({{finite ? 0.0 : 1.0}, {0}});
  return result;
}

}  // namespace weft::kernels
