// kernels/device/pointwise.cuh on the elements' bits. Memory-bound.
#include "kernels/device/pointwise.cuh"
#include "kernels/where/where.h"

namespace weft::kernels {
namespace {

struct Choose {
  template <class Word, int n>
  __device__ void operator()(const Word (&in)[3][n], Word (&out)[n]) const {
#pragma unroll
    for (int k = 0; k < n; ++k) out[k] = in[0][k] != 0 ? in[1][k] : in[2][k];
  }
};

}  // namespace

void where_cuda_elements(const WhereProblem& p) {
  with_bits(p.dtype(), [&](auto access) {
    pointwise<decltype(access)>(Choose{}, p.y, std::array{p.condition, p.a, p.b});
  });
}

}  // namespace weft::kernels
