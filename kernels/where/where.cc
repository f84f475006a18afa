#include "kernels/where/where.h"

namespace weft::kernels {

#define WEFT_VARIANT(name, device, dtypes, fits) WEFT_DECLARE_VARIANT(WhereProblem, name)
#include "kernels/where/where.inc"
#undef WEFT_VARIANT

const Op<WhereProblem>& where_op() {
#define WEFT_VARIANT(name, device, dtypes, fits) \
  WEFT_VARIANT_ROW(WhereProblem, name, device, dtypes, fits)
  static constexpr Variant<WhereProblem> kVariants[] = {
#include "kernels/where/where.inc"
  };
#undef WEFT_VARIANT
  static constexpr Op<WhereProblem> kOp = {"where", kVariants};
  return kOp;
}

void where(const WhereProblem& problem) { dispatch(where_op(), problem); }

bool has_one_dtype(const WhereProblem& p) {
  return p.condition.dtype() == DType::boolean && p.a.dtype() == p.dtype() &&
         p.b.dtype() == p.dtype();
}

std::string WhereProblem::describe() const {
  return fmt::format("where({}, {}, {} to {})", condition, a, b, y.dtype());
}

}  // namespace weft::kernels
