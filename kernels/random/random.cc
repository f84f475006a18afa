#include "kernels/random/random.h"

namespace weft::kernels {

#define WEFT_VARIANT(name, device, dtypes, fits) WEFT_DECLARE_VARIANT(RandomProblem, name)
#include "kernels/random/random.inc"
#undef WEFT_VARIANT

const Op<RandomProblem>& random_op() {
#define WEFT_VARIANT(name, device, dtypes, fits) \
  WEFT_VARIANT_ROW(RandomProblem, name, device, dtypes, fits)
  static constexpr Variant<RandomProblem> kVariants[] = {
#include "kernels/random/random.inc"
  };
#undef WEFT_VARIANT
  static constexpr Op<RandomProblem> kOp = {"random", kVariants};
  return kOp;
}

bool random_fits_cuda(const RandomProblem& p) {
  return p.distribution != Distribution::trunc_normal;
}

void random(const RandomProblem& problem) { dispatch(random_op(), problem); }

std::string_view name(Distribution distribution) {
  switch (distribution) {
    case Distribution::uniform:
      return "uniform";
    case Distribution::normal:
      return "normal";
    case Distribution::trunc_normal:
      return "trunc_normal";
    case Distribution::bernoulli:
      return "bernoulli";
    case Distribution::integers:
      return "integers";
  }
  return "unknown";
}

std::string RandomProblem::describe() const {
  return fmt::format("random({}, {}, seed={}, stream={}, offset={})", y, name(distribution), seed,
                     stream, offset);
}

}  // namespace weft::kernels
