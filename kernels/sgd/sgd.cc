#include "kernels/sgd/sgd.h"

namespace weft::kernels {

#define WEFT_OP sgd
#define WEFT_PROBLEM SgdProblem
#include "kernels/op_list_inl.h"

std::string SgdProblem::describe() const {
  return fmt::format("sgd({} parameters of {}, lr={}, momentum={}, nesterov={})", parameters.size(),
                     dtype(), lr, momentum, nesterov);
}

}  // namespace weft::kernels
