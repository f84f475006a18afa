#include "kernels/reduce/reduce.h"

namespace weft::kernels {
namespace {

bool reduce_is_arithmetic(const ReduceProblem& problem) {
  switch (problem.reduction) {
    case Reduction::sum:
    case Reduction::mean:
    case Reduction::var:
    case Reduction::max:
    case Reduction::min:
      return true;
    default:
      return false;
  }
}

}  // namespace

#define WEFT_OP reduce
#define WEFT_PROBLEM ReduceProblem
#define WEFT_LIST "kernels/reduce/reduce.inc"
#include "kernels/op_list_inl.h"

void reduce(const ReduceProblem& problem) { dispatch(reduce_op(), problem); }

std::string_view name(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return "sum";
    case Reduction::mean:
      return "mean";
    case Reduction::prod:
      return "prod";
    case Reduction::var:
      return "var";
    case Reduction::max:
      return "max";
    case Reduction::min:
      return "min";
    case Reduction::argmax:
      return "argmax";
    case Reduction::argmin:
      return "argmin";
    case Reduction::any:
      return "any";
    case Reduction::all:
      return "all";
  }
  WEFT_ASSERT(false);
}

std::string ReduceProblem::describe() const {
  return fmt::format("{}({} to {})", name(reduction), x, y.shape());
}

}  // namespace weft::kernels
