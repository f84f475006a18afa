#include "kernels/random/random.h"

namespace weft::kernels {

#define WEFT_OP random
#define WEFT_PROBLEM RandomProblem
#include "kernels/op_list_inl.h"

std::string_view name(Distribution distribution) {
  static constexpr std::string_view kNames[] = {"uniform", "normal", "trunc_normal", "bernoulli",
                                                "integers"};
  return kNames[static_cast<size_t>(distribution)];
}

std::string RandomProblem::describe() const {
  return fmt::format("random({}, {}, seed={}, stream={}, offset={})", y, name(distribution), seed,
                     stream, offset);
}

}  // namespace weft::kernels
