#include "kernels/dropout/dropout.h"

namespace weft::kernels {

#define WEFT_OP dropout
#define WEFT_PROBLEM DropoutProblem
#define WEFT_LIST "kernels/dropout/dropout.inc"
#include "kernels/op_list_inl.h"

void dropout(const DropoutProblem& problem) { dispatch(dropout_op(), problem); }

std::string DropoutProblem::describe() const {
  return fmt::format("dropout({}, p={}, seed={}, stream={}, offset={})", x, p, seed, stream,
                     offset);
}

}  // namespace weft::kernels
