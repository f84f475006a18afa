// Plain loops. Nothing is rounded, so equality is demanded; integers to 2^53.
#include "kernels/where/where.h"

namespace weft::kernels {

std::vector<Expected> where_reference(const WhereProblem& p) {
  const std::vector<double> condition = p.condition.to_vector();
  const std::vector<double> a = p.a.to_vector(), b = p.b.to_vector();
  Expected expected;
  for (size_t i = 0; i < condition.size(); ++i) {
    expected.add(condition[i] != 0 ? a[i] : b[i], 0);
  }
  return {expected};
}

}  // namespace weft::kernels
