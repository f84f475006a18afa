// Plain loops. The value is rounded once, so equality is demanded.
#include "kernels/elementwise/reference.h"
#include "kernels/fill/fill.h"

namespace weft::kernels {

std::vector<Expected> fill_reference(const FillProblem& p) {
  const size_t n = p.y.numel();
  return {{std::vector<double>(n, as_stored(p.value, DType::f64, p.dtype())),
           std::vector<double>(n, 0.0)}};
}

}  // namespace weft::kernels
