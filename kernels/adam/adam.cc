#include "kernels/adam/adam.h"

#include <cstring>

#include "kernels/adam/adam_constants.h"

namespace weft::kernels {

#define WEFT_VARIANT(name, device, dtypes, fits) WEFT_DECLARE_VARIANT(AdamProblem, name)
#include "kernels/adam/adam.inc"
#undef WEFT_VARIANT

const Op<AdamProblem>& adam_op() {
#define WEFT_VARIANT(name, device, dtypes, fits) \
  WEFT_VARIANT_ROW(AdamProblem, name, device, dtypes, fits)
  static constexpr Variant<AdamProblem> kVariants[] = {
#include "kernels/adam/adam.inc"
  };
#undef WEFT_VARIANT
  static constexpr Op<AdamProblem> kOp = {"adam", kVariants};
  return kOp;
}

void adam(const AdamProblem& problem) { dispatch(adam_op(), problem); }

Tensor adam_constants(const AdamProblem& problem) {
  const auto bytes_of = [](const auto& constants) {
    Tensor bytes = Tensor::empty({sizeof(constants)}, DType::u8);
    std::memcpy(bytes.raw(), &constants, sizeof(constants));
    return bytes;
  };
  return problem.dtype() == DType::f64 ? bytes_of(AdamConstants<double>(problem))
                                       : bytes_of(AdamConstants<float>(problem));
}

std::string AdamProblem::describe() const {
  return fmt::format("adam({} parameters of {}, step={}, lr={}, decoupled={})", parameters.size(),
                     dtype(), step, lr, decoupled);
}

}  // namespace weft::kernels
