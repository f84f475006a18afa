#include "kernels/where/where.h"

namespace weft::kernels {

#define WEFT_OP where
#define WEFT_PROBLEM WhereProblem
#define WEFT_LIST "kernels/where/where.inc"
#include "kernels/op_list_inl.h"

void where(const WhereProblem& problem) { dispatch(where_op(), problem); }

bool has_one_dtype(const WhereProblem& p) {
  return p.condition.dtype() == DType::boolean && p.a.dtype() == p.dtype() &&
         p.b.dtype() == p.dtype();
}

std::string WhereProblem::describe() const {
  return fmt::format("where({}, {}, {} to {})", condition, a, b, y.dtype());
}

}  // namespace weft::kernels
