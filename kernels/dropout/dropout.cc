#include "kernels/dropout/dropout.h"

namespace weft::kernels {

#define WEFT_OP dropout
#define WEFT_PROBLEM DropoutProblem
#include "kernels/op_list_inl.h"

std::string DropoutProblem::describe() const {
  return fmt::format("dropout({}, p={}, seed={}, stream={}, offset={})", x, p, seed, stream,
                     offset);
}

}  // namespace weft::kernels
