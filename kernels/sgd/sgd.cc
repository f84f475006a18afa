#include "kernels/sgd/sgd.h"

namespace weft::kernels {

#define WEFT_OP sgd
#define WEFT_PROBLEM SgdProblem
#define WEFT_LIST "kernels/sgd/sgd.inc"
#include "kernels/op_list_inl.h"

void sgd(const SgdProblem& problem) { dispatch(sgd_op(), problem); }

std::string SgdProblem::describe() const {
  return fmt::format("sgd({} parameters of {}, lr={}, momentum={}, nesterov={})", parameters.size(),
                     dtype(), lr, momentum, nesterov);
}

}  // namespace weft::kernels
