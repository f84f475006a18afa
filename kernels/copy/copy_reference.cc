// Plain loops. A conversion is exact or rounds once as core/float_formats.h does, so equality is
// demanded; integers to 2^53. kernels/elementwise/elementwise_test.cc has the rest.
#include "kernels/copy/copy.h"
#include "kernels/elementwise/convert.h"
#include "kernels/elementwise/reference.h"

namespace weft::kernels {

std::vector<Expected> copy_reference(const CopyProblem& p) {
  Expected expected;
  for (double x : p.x.to_vector()) {
    expected.add(as_stored(x, arithmetic_type(p.x.dtype()), p.y.dtype()), 0);
  }
  return {expected};
}

}  // namespace weft::kernels
