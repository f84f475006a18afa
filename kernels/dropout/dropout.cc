#include "kernels/dropout/dropout.h"

namespace weft::kernels {

#define WEFT_VARIANT(name, device, dtypes, fits) WEFT_DECLARE_VARIANT(DropoutProblem, name)
#include "kernels/dropout/dropout.inc"
#undef WEFT_VARIANT

const Op<DropoutProblem>& dropout_op() {
#define WEFT_VARIANT(name, device, dtypes, fits) \
  WEFT_VARIANT_ROW(DropoutProblem, name, device, dtypes, fits)
  static constexpr Variant<DropoutProblem> kVariants[] = {
#include "kernels/dropout/dropout.inc"
  };
#undef WEFT_VARIANT
  static constexpr Op<DropoutProblem> kOp = {"dropout", kVariants};
  return kOp;
}

void dropout(const DropoutProblem& problem) { dispatch(dropout_op(), problem); }

std::string DropoutProblem::describe() const {
  return fmt::format("dropout({}, p={}, seed={}, stream={}, offset={})", x, p, seed, stream,
                     offset);
}

}  // namespace weft::kernels
