#include "kernels/sgd/sgd.h"

namespace weft::kernels {

#define WEFT_VARIANT(name, device, dtypes, fits) WEFT_DECLARE_VARIANT(SgdProblem, name)
#include "kernels/sgd/sgd.inc"
#undef WEFT_VARIANT

const Op<SgdProblem>& sgd_op() {
#define WEFT_VARIANT(name, device, dtypes, fits) \
  WEFT_VARIANT_ROW(SgdProblem, name, device, dtypes, fits)
  static constexpr Variant<SgdProblem> kVariants[] = {
#include "kernels/sgd/sgd.inc"
  };
#undef WEFT_VARIANT
  static constexpr Op<SgdProblem> kOp = {"sgd", kVariants};
  return kOp;
}

void sgd(const SgdProblem& problem) { dispatch(sgd_op(), problem); }

std::string SgdProblem::describe() const {
  return fmt::format("sgd({} parameters of {}, lr={}, momentum={}, nesterov={})", parameters.size(),
                     dtype(), lr, momentum, nesterov);
}

}  // namespace weft::kernels
