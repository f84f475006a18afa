// Rung 2, shared memory: 16 x 16 threads load a 16 x 16 tile of A and of B together and use each
// element 16 times. Bound by shared memory: two loads for each multiply-add.
//
//   hazard                                         barrier
//   a tile is read before it is complete           after the loads
//   a tile is overwritten while others read it     after the products
#include "kernels/device/instances.h"
#include "kernels/gemm/gemm_bias_gradient.cuh"

namespace weft::kernels {
namespace {

constexpr int kTile = 16;

template <class Acc>
__global__ void __launch_bounds__(kTile* kTile)
    gemm_tiled_kernel(const __grid_constant__ GemmArguments p) {
  // The pad keeps a column of the tile in different banks.
  WEFT_SHARED(Acc, tile_a, [kTile][kTile + 1]);
  WEFT_SHARED(Acc, tile_b, [kTile][kTile + 1]);
  const int i = static_cast<int>(threadIdx.y), j = static_cast<int>(threadIdx.x);
  const BlockTile tile(p, kTile);
  const int64_t row = int64_t{tile.row} * kTile + i;
  const int64_t column = int64_t{tile.column} * kTile + j;
  for (int64_t batch = blockIdx.z; batch < p.batches; batch += gridDim.z) {
    const int64_t a = p.base(p.a, batch), b = p.base(p.b, batch);
    Acc sum = 0;
    for (int64_t l = 0; l < p.k; l += kTile) {
      tile_a[i][j] = row < p.m && l + j < p.k
                         ? load_one<Acc>(p.a.elements, a + row * p.a.row + (l + j) * p.a.column)
                         : Acc(0);
      tile_b[i][j] = l + i < p.k && column < p.n
                         ? load_one<Acc>(p.b.elements, b + (l + i) * p.b.row + column * p.b.column)
                         : Acc(0);
      __syncthreads();
#pragma unroll
      for (int d = 0; d < kTile; ++d) sum = std::fma(tile_a[i][d], tile_b[d][j], sum);
      __syncthreads();
    }
    if (row < p.m && column < p.n) p.finish(p.output(batch), row, column, sum);
  }
}

}  // namespace

void gemm_cuda_tiled(const GemmProblem& problem) {
  if (finish_if_empty(problem)) return;
  const GemmArguments p(problem);
  const dim3 grid = tile_grid(p, kTile, kTile, p.batches);
  with_arithmetic_zero(problem.dtype(), [&](auto zero) {
    using Acc = decltype(zero);
    WEFT_LAUNCH(gemm_tiled_kernel<Acc>, grid, dim3(kTile, kTile), 0,
                current_stream_handle(problem.device()), p);
    sum_columns<Acc>(problem, p);
  });
}

}  // namespace weft::kernels
