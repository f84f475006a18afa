#include "kernels/copy/copy.h"

namespace weft::kernels {

#define WEFT_VARIANT(name, device, dtypes, fits) WEFT_DECLARE_VARIANT(CopyProblem, name)
#include "kernels/copy/copy.inc"
#undef WEFT_VARIANT

const Op<CopyProblem>& copy_op() {
#define WEFT_VARIANT(name, device, dtypes, fits) \
  WEFT_VARIANT_ROW(CopyProblem, name, device, dtypes, fits)
  static constexpr Variant<CopyProblem> kVariants[] = {
#include "kernels/copy/copy.inc"
  };
#undef WEFT_VARIANT
  static constexpr Op<CopyProblem> kOp = {"copy", kVariants};
  return kOp;
}

void copy(const CopyProblem& problem) { dispatch(copy_op(), problem); }

std::string CopyProblem::describe() const { return fmt::format("copy({} to {})", x, y); }

Tensor contiguous(const Tensor& x) { return contiguous(x, x.dtype()); }

Tensor contiguous(const Tensor& x, DType dtype) {
  if (x.is_contiguous() && x.dtype() == dtype) return x;
  const Tensor y = Tensor::empty(x.shape(), dtype, x.device());
  copy({.x = x, .y = y});
  return y;
}

}  // namespace weft::kernels
