#include "kernels/fp8_quantize/fp8_quantize.h"

namespace weft::kernels {

#define WEFT_VARIANT(name, device, dtypes, fits) WEFT_DECLARE_VARIANT(Fp8QuantizeProblem, name)
#include "kernels/fp8_quantize/fp8_quantize.inc"
#undef WEFT_VARIANT

const Op<Fp8QuantizeProblem>& fp8_quantize_op() {
#define WEFT_VARIANT(name, device, dtypes, fits) \
  WEFT_VARIANT_ROW(Fp8QuantizeProblem, name, device, dtypes, fits)
  static constexpr Variant<Fp8QuantizeProblem> kVariants[] = {
#include "kernels/fp8_quantize/fp8_quantize.inc"
  };
#undef WEFT_VARIANT
  static constexpr Op<Fp8QuantizeProblem> kOp = {"fp8_quantize", kVariants};
  return kOp;
}

void fp8_quantize(const Fp8QuantizeProblem& problem) { dispatch(fp8_quantize_op(), problem); }

std::string Fp8QuantizeProblem::describe() const {
  return fmt::format("fp8_quantize({} -> {}, scale={})", x, y.defined() ? name(y.dtype()) : "none",
                     scale);
}

double fp8_max(DType format) {
  WEFT_ASSERT(format == DType::f8e4m3 || format == DType::f8e5m2);
  return format == DType::f8e4m3 ? 448 : 57344;
}

}  // namespace weft::kernels
