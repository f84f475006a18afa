// kernels/device/pointwise.cuh with one switch over the ops for every 8 elements.
// Memory-bound.
#include "kernels/device/pointwise.cuh"
#include "kernels/elementwise/convert.h"
#include "kernels/unary/unary_function.cuh"

namespace weft::kernels {

void unary_cuda_elements(const UnaryProblem& p) {
  with_arithmetic(arithmetic_type(p.x.dtype()), [&](auto access) {
    pointwise<decltype(access)>(UnaryFunction{p.op, p.alpha}, p.y, std::array{p.x});
  });
}

}  // namespace weft::kernels
