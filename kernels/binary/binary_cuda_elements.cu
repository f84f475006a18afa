// kernels/device/pointwise.cuh with one switch over the ops for every 8 elements.
// Memory-bound.
#include "kernels/binary/binary_function.cuh"
#include "kernels/device/pointwise.cuh"
#include "kernels/elementwise/convert.h"

namespace weft::kernels {

void binary_cuda_elements(const BinaryProblem& p) {
  with_arithmetic(arithmetic_type(p.a.dtype(), p.b.dtype()), [&](auto access) {
    pointwise<decltype(access)>(BinaryFunction{p.op, p.alpha}, p.y, std::array{p.a, p.b});
  });
}

}  // namespace weft::kernels
