// Plain loops; the products are those that the header defines, so that the bound is 0.
#include "core/philox.h"
#include "kernels/dropout/dropout.h"
#include "numerics/error_bounds.h"

namespace weft::kernels {

std::vector<Expected> dropout_reference(const DropoutProblem& p) {
  Expected expected;
  expected.values = p.x.to_vector();
  expected.bounds.assign(expected.values.size(), 0);
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const uint32_t word = philox4x32(p.seed, p.stream, p.drawn_offset() + i / 4)[i % 4];
    double& value = expected.values[i];
    if (uniform_from_bits(word) < p.p) {
      value = 0;
      continue;
    }
    if (p.dtype() == DType::f64) {
      value *= p.factor();
      continue;
    }
    const float product = static_cast<float>(value) * static_cast<float>(p.factor());
    value = numerics::round_to(product, p.dtype());
  }
  return {expected};
}

}  // namespace weft::kernels
