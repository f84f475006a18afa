// Plain loops in f64. Two products, each rounded: 2 u |y|, and u^2's for the f64 they are done in.
#include <cmath>

#include "kernels/cube/cube.h"

namespace weft::kernels {

std::vector<Expected> cube_reference(const CubeProblem& p) {
  Expected expected;
  for (const double x : p.x.to_vector()) {
    expected.values.push_back(x * x * x);
    expected.bounds.push_back(3 * unit_roundoff(p.dtype()) * std::fabs(x * x * x));
  }
  return {expected};
}

}  // namespace weft::kernels
