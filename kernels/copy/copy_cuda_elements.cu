// kernels/device/pointwise.cuh: bits where the dtypes are equal, else through the arithmetic
// type of the source, which holds it exactly. Memory-bound.
#include "kernels/copy/copy.h"
#include "kernels/device/pointwise.cuh"
#include "kernels/elementwise/convert.h"

namespace weft::kernels {
namespace {

struct Same {
  template <class Value, int n>
  __device__ void operator()(const Value (&in)[1][n], Value (&out)[n]) const {
#pragma unroll
    for (int k = 0; k < n; ++k) out[k] = in[0][k];
  }
};

}  // namespace

void copy_cuda_elements(const CopyProblem& p) {
  const auto copy_as = [&](auto access) {
    pointwise<decltype(access)>(Same{}, p.y, std::array{p.x});
  };
  if (p.x.dtype() == p.y.dtype()) return with_bits(p.x.dtype(), copy_as);
  with_arithmetic(arithmetic_type(p.x.dtype()), copy_as);
}

}  // namespace weft::kernels
