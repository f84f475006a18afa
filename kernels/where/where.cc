#include "kernels/where/where.h"

namespace weft::kernels {

#define WEFT_OP where
#define WEFT_PROBLEM WhereProblem
#include "kernels/op_list_inl.h"

bool has_one_dtype(const WhereProblem& p) {
  return p.condition.dtype() == DType::boolean && p.a.dtype() == p.dtype() &&
         p.b.dtype() == p.dtype();
}

std::string WhereProblem::describe() const {
  return fmt::format("where({}, {}, {} to {})", condition, a, b, y.dtype());
}

}  // namespace weft::kernels
