#include "kernels/fp8_quantize/fp8_quantize.h"

namespace weft::kernels {

#define WEFT_OP fp8_quantize
#define WEFT_PROBLEM Fp8QuantizeProblem
#define WEFT_LIST "kernels/fp8_quantize/fp8_quantize.inc"
#include "kernels/op_list_inl.h"

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
