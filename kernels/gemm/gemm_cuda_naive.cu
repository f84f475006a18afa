// Rung 1, the definition: a thread for each element of C walks along its row of A and column of B.
// Any strides, shapes and dtypes, every epilogue. Bound by the loads: two for each multiply-add,
// which the caches answer.
#include "kernels/device/instances.h"
#include "kernels/gemm/gemm_bias_gradient.cuh"

namespace weft::kernels {
namespace {

constexpr int kTile = 16;

template <class Acc>
__global__ void __launch_bounds__(kTile* kTile)
    gemm_naive_kernel(const __grid_constant__ GemmArguments p) {
  const BlockTile tile(p, kTile);
  const int64_t column = int64_t{tile.column} * kTile + threadIdx.x;
  const int64_t row = int64_t{tile.row} * kTile + threadIdx.y;
  if (row >= p.m || column >= p.n) return;
  for (int64_t batch = blockIdx.z; batch < p.batches; batch += gridDim.z) {
    const int64_t a = p.base(p.a, batch) + row * p.a.row;
    const int64_t b = p.base(p.b, batch) + column * p.b.column;
    Acc sum = 0;
    for (int64_t l = 0; l < p.k; ++l) {
      sum = std::fma(load_one<Acc>(p.a.elements, a + l * p.a.column),
                     load_one<Acc>(p.b.elements, b + l * p.b.row), sum);
    }
    p.finish(p.output(batch), row, column, sum);
  }
}

}  // namespace

void gemm_cuda_naive(const GemmProblem& problem) {
  if (finish_if_empty(problem)) return;
  const GemmArguments p(problem);
  const dim3 grid = tile_grid(p, kTile, kTile, p.batches);
  with_arithmetic_zero(problem.dtype(), [&](auto zero) {
    using Acc = decltype(zero);
    WEFT_LAUNCH(gemm_naive_kernel<Acc>, grid, dim3(kTile, kTile), 0,
                current_stream_handle(problem.device()), p);
    sum_columns<Acc>(problem, p);
  });
}

}  // namespace weft::kernels
