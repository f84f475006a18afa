#include "kernels/cross_entropy/cross_entropy.h"

namespace weft::kernels {

#define WEFT_VARIANT(name, device, dtypes, fits) WEFT_DECLARE_VARIANT(CrossEntropyProblem, name)
#include "kernels/cross_entropy/cross_entropy.inc"
#undef WEFT_VARIANT

const Op<CrossEntropyProblem>& cross_entropy_op() {
#define WEFT_VARIANT(name, device, dtypes, fits) \
  WEFT_VARIANT_ROW(CrossEntropyProblem, name, device, dtypes, fits)
  static constexpr Variant<CrossEntropyProblem> kVariants[] = {
#include "kernels/cross_entropy/cross_entropy.inc"
  };
#undef WEFT_VARIANT
  static constexpr Op<CrossEntropyProblem> kOp = {"cross_entropy", kVariants};
  return kOp;
}

void cross_entropy(const CrossEntropyProblem& problem) { dispatch(cross_entropy_op(), problem); }

std::string CrossEntropyProblem::describe() const {
  return fmt::format("cross_entropy({}, labels={}, label_smoothing={}, forward={}, backward={})",
                     logits, labels, label_smoothing, forward(), backward());
}

}  // namespace weft::kernels
