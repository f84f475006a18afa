// The value is converted on the host; kernels/device/pointwise.cuh writes its bits.
#include "kernels/device/pointwise.cuh"
#include "kernels/elementwise/convert.h"
#include "kernels/fill/fill.h"

namespace weft::kernels {
namespace {

struct Constant {
  uint64_t bits;

  template <class Word, int n>
  __device__ void operator()(const Word (&)[1][n], Word (&out)[n]) const {
#pragma unroll
    for (int k = 0; k < n; ++k) out[k] = static_cast<Word>(bits);
  }
};

}  // namespace

void fill_cuda_elements(const FillProblem& p) {
  Constant constant{0};
  convert(&p.value, DType::f64, &constant.bits, p.dtype(), 1);
  with_bits(p.dtype(), [&](auto access) {
    pointwise<decltype(access)>(constant, p.y, std::array<Tensor, 0>{});
  });
}

}  // namespace weft::kernels
