// Choice by element: y[i] = condition[i] ? a[i] : b[i].
//
// condition (bool), a, b, y: the same shape, any strides (view::expand broadcasts); a, b and y of
// one dtype, any. y has no repeated elements, is assigned (=) and may be a or b itself. No number
// is changed: NaN payloads and signs of zeros survive.
#pragma once

#include "kernels/op.h"

namespace weft::kernels {

struct WhereProblem {
  Tensor condition, a, b, y;

  DType dtype() const { return y.dtype(); }
  Device device() const { return y.device(); }
  std::string describe() const {
    return fmt::format("where({}, {}, {} to {})", condition, a, b, y.dtype());
  }
};

inline bool has_one_dtype(const WhereProblem& p) {
  return p.condition.dtype() == DType::boolean && p.a.dtype() == p.dtype() &&
         p.b.dtype() == p.dtype();
}
/// y[i] = condition[i] ? a[i] : b[i] for n elements; y may be a or b.
using WhereLoop = void (*)(const uint8_t* condition, const void* a, const void* b, void* y,
                           int64_t n);
WhereLoop where_loop(size_t itemsize);
WEFT_DECLARE_OP(where, WhereProblem);

}  // namespace weft::kernels
