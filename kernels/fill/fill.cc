#include "kernels/fill/fill.h"

namespace weft::kernels {

#define WEFT_VARIANT(name, device, dtypes, fits) WEFT_DECLARE_VARIANT(FillProblem, name)
#include "kernels/fill/fill.inc"
#undef WEFT_VARIANT

const Op<FillProblem>& fill_op() {
#define WEFT_VARIANT(name, device, dtypes, fits) \
  WEFT_VARIANT_ROW(FillProblem, name, device, dtypes, fits)
  static constexpr Variant<FillProblem> kVariants[] = {
#include "kernels/fill/fill.inc"
  };
#undef WEFT_VARIANT
  static constexpr Op<FillProblem> kOp = {"fill", kVariants};
  return kOp;
}

void fill(const FillProblem& problem) { dispatch(fill_op(), problem); }

std::string FillProblem::describe() const { return fmt::format("fill({}, {})", y, value); }

}  // namespace weft::kernels
