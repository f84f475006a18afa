#include "kernels/reduce/reduce.h"

namespace weft::kernels {
namespace {

bool reduce_is_arithmetic(const ReduceProblem& problem) {
  switch (problem.reduction) {
    case Reduction::kSum:
    case Reduction::kMean:
    case Reduction::kVar:
    case Reduction::kMax:
    case Reduction::kMin:
      return true;
    default:
      return false;
  }
}

}  // namespace

#define WEFT_OP reduce
#define WEFT_PROBLEM ReduceProblem
#include "kernels/op_list_inl.h"

std::string_view name(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return "sum";
    case Reduction::kMean:
      return "mean";
    case Reduction::kProd:
      return "prod";
    case Reduction::kVar:
      return "var";
    case Reduction::kMax:
      return "max";
    case Reduction::kMin:
      return "min";
    case Reduction::kArgmax:
      return "argmax";
    case Reduction::kArgmin:
      return "argmin";
    case Reduction::kAny:
      return "any";
    case Reduction::kAll:
      return "all";
  }
  WEFT_ASSERT(false);
}

std::string ReduceProblem::describe() const {
  return fmt::format("{}({} to {})", name(reduction), x, y.shape());
}

}  // namespace weft::kernels
