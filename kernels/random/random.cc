#include "kernels/random/random.h"

namespace weft::kernels {

#define WEFT_OP random
#define WEFT_PROBLEM RandomProblem
#include "kernels/op_list_inl.h"

bool random_fits_cuda(const RandomProblem& p) {
  return p.distribution != Distribution::kTruncNormal;
}

std::string_view name(Distribution distribution) {
  switch (distribution) {
    case Distribution::kUniform:
      return "uniform";
    case Distribution::kNormal:
      return "normal";
    case Distribution::kTruncNormal:
      return "trunc_normal";
    case Distribution::kBernoulli:
      return "bernoulli";
    case Distribution::kIntegers:
      return "integers";
  }
  return "unknown";
}

std::string RandomProblem::describe() const {
  return fmt::format("random({}, {}, seed={}, stream={}, offset={})", y, name(distribution), seed,
                     stream, offset);
}

}  // namespace weft::kernels
