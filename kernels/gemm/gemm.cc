#include "kernels/gemm/gemm.h"

#include "kernels/gemm/gemm_cublas.h"

namespace weft::kernels {

#define WEFT_VARIANT(name, device, dtypes, fits) WEFT_DECLARE_VARIANT(GemmProblem, name)
#include "kernels/gemm/gemm.inc"
#undef WEFT_VARIANT

const Op<GemmProblem>& gemm_op() {
#define WEFT_VARIANT(name, device, dtypes, fits) \
  WEFT_VARIANT_ROW(GemmProblem, name, device, dtypes, fits)
  static constexpr Variant<GemmProblem> kVariants[] = {
#include "kernels/gemm/gemm.inc"
  };
#undef WEFT_VARIANT
  static constexpr Op<GemmProblem> kOp = {"gemm", kVariants};
  return kOp;
}

void gemm(const GemmProblem& problem) { dispatch(gemm_op(), problem); }

std::string GemmProblem::describe() const {
  const char* const epilogues[] = {"none", "gelu", "dgelu"};
  return fmt::format("gemm({} x {} -> {}, bias={}, epilogue={}, accumulate={})", a, b, c,
                     bias.defined() ? name(bias.dtype()) : "none",
                     epilogues[static_cast<int>(epilogue)], accumulate);
}

}  // namespace weft::kernels
