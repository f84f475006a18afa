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

#define WEFT_VARIANT(name, device, dtypes, fits) WEFT_DECLARE_VARIANT(ReduceProblem, name)
#include "kernels/reduce/reduce.inc"
#undef WEFT_VARIANT

const Op<ReduceProblem>& reduce_op() {
#define WEFT_VARIANT(name, device, dtypes, fits) \
  WEFT_VARIANT_ROW(ReduceProblem, name, device, dtypes, fits)
  static constexpr Variant<ReduceProblem> kVariants[] = {
#include "kernels/reduce/reduce.inc"
  };
#undef WEFT_VARIANT
  static constexpr Op<ReduceProblem> kOp = {"reduce", kVariants};
  return kOp;
}

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
