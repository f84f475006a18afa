#include "kernels/softmax/softmax.h"

#include "kernels/softmax/softmax_cudnn.h"

namespace weft::kernels {

#define WEFT_VARIANT(name, device, dtypes, fits) WEFT_DECLARE_VARIANT(SoftmaxProblem, name)
#include "kernels/softmax/softmax.inc"
#undef WEFT_VARIANT

const Op<SoftmaxProblem>& softmax_op() {
#define WEFT_VARIANT(name, device, dtypes, fits) \
  WEFT_VARIANT_ROW(SoftmaxProblem, name, device, dtypes, fits)
  static constexpr Variant<SoftmaxProblem> kVariants[] = {
#include "kernels/softmax/softmax.inc"
  };
#undef WEFT_VARIANT
  static constexpr Op<SoftmaxProblem> kOp = {"softmax", kVariants};
  return kOp;
}

void softmax(const SoftmaxProblem& problem) { dispatch(softmax_op(), problem); }

std::string SoftmaxProblem::tuning_key() const {
  return operand_key("x", x) + operand_key("y", y) + operand_key("dx", dx) +
         fmt::format("axis {}{}", axis, log ? ", log" : "");
}

std::vector<Tensor> SoftmaxProblem::written() const { return {backward() ? dx : y}; }

std::string SoftmaxProblem::describe() const {
  return fmt::format("softmax({}, axis={}, log={}, backward={})", x, axis, log, backward());
}

}  // namespace weft::kernels
