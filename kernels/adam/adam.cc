#include "kernels/adam/adam.h"

#include <cstring>

#include "kernels/adam/adam_constants.h"

namespace weft::kernels {

#define WEFT_OP adam
#define WEFT_PROBLEM AdamProblem
#include "kernels/op_list_inl.h"

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
