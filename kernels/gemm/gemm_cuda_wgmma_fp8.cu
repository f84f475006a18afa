// Rung 6, Hopper's fp8: wgmma on e4m3 and e5m2, its sums promoted to f32 every 128 of K (sm_90a).
//
// The tensor core keeps 13 bits of a sum of fp8 products (numerics/tensor_core.h). So a consumer
// has two sets of sums: one that wgmma starts anew every 128 of K, and one in f32 to which ordinary
// additions bring it (DeepSeek-V3, arXiv:2412.19437, section 3.3.2). A stage of the ring is those
// 128 of K, a line of 128 bytes; while one consumer adds, the other's products keep the tensor core
// busy. Two sets of 64 registers bound the tile to 128 x 128.
//
// Ring, barriers, the walk over tiles, streamed K and the way of C are those of gemm_cuda_wgmma.cu.
// Unlike 16-bit operands, wgmma takes fp8 ones K-major alone: others, and those whose lines TMA
// cannot address, are copied so first, a pass over a byte per element.
#include "core/view.h"
#include "kernels/gemm/gemm_wgmma.cuh"

namespace weft::kernels {
namespace {

using namespace ptx;
using namespace wgmma_tiles;

constexpr int kCols = 128, kDepth = kLine;
constexpr int kStepsPerPromotion = kFp8PromotionInterval / kDepth;
constexpr int kStages = 4;
constexpr size_t kSharedBytes = size_t{kStages} * kStageBytes<kCols> + kBufferBytes<kCols>;

template <class TypeA, class TypeB>
__global__ void __launch_bounds__(kThreads, 1)
    gemm_wgmma_fp8_kernel(const __grid_constant__ Arguments g,
                          const __grid_constant__ TensorMap map_a,
                          const __grid_constant__ TensorMap map_b,
                          const __grid_constant__ TensorMap map) {
  WEFT_DYNAMIC_SHARED(char, shared);
  WEFT_SHARED(uint64_t, full, [kStages]);
  WEFT_SHARED(uint64_t, empty, [kStages]);
  start_barriers<kStages>(full, empty, kConsumers, g.order.blocks);
  const int warpgroup = uniform_warpgroup();
  Ring<kStages> ring;

  if (warpgroup == 0) {
    return produce<kCols, Major::kK, Major::kK>(g, kDepth, ring, shared, full, empty, map_a, map_b);
  }

  setmaxnreg_inc<kConsumerRegisters>();
  const int consumer = warpgroup - 1;
  const int thread = static_cast<int>(threadIdx.x) % kConsumerThreads;
  const Buffer buffer = Buffer::of<kCols>(shared + kStages * kStageBytes<kCols>, consumer);
  g.for_each_piece([&](const TilePlace& tile, uint32_t slot, int, int steps) {
    float sums[1][kCols / 2] = {}, products[kCols / 2];
    for (int step = 0; step < steps; ++step, ring.advance()) {
      const bool starts = step % kStepsPerPromotion == 0;
      const bool promotes = (step + 1) % kStepsPerPromotion == 0 || step + 1 == steps;
      mbarrier_wait(&full[ring.stage], ring.parity);
      const char* const tile_a = shared + ring.stage * kStageBytes<kCols> + consumer * kAtom;
      const char* const tile_b = shared + ring.stage * kStageBytes<kCols> + kRows * kLine;
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kDepth / 32; ++k) {
        wgmma_fp8<TypeA, TypeB, kCols>(products, wgmma_descriptor_k_major(tile_a + 32 * k),
                                       wgmma_descriptor_k_major(tile_b + 32 * k), k > 0 || !starts);
      }
      wgmma_commit();
      if (step == 0) load_shifts<kCols>(g, buffer, tile);
      wgmma_wait<0>();
      if (thread == 0) mbarrier_arrive(&empty[ring.stage]);
      if (!promotes) continue;
#pragma unroll
      for (int i = 0; i < kCols / 2; ++i) sums[0][i] += products[i];
    }
    if (g.p.c.elements.dtype == DType::bf16) {
      store_tile<bf16, kCols, 1>(g, &map, buffer, tile, slot, consumer, sums);
    } else {
      store_tile<f16, kCols, 1>(g, &map, buffer, tile, slot, consumer, sums);
    }
  });
  wait_for_stores();
}

template <class TypeA, class TypeB>
void run(const GemmProblem& problem) {
  const Tensor a = k_major(problem.a, "gemm_cuda_wgmma_fp8", "A");
  const Tensor b = k_major(view::transpose(problem.b, -1, -2), "gemm_cuda_wgmma_fp8", "B");
  const TmaMatrix matrix_a = *tma_matrix(a), matrix_b = *tma_matrix(b);
  const TensorMap map_a = matrix_map(matrix_a, a.dtype(), kRows);
  const TensorMap map_b = matrix_map(matrix_b, b.dtype(), kCols);
  // A model's bits are those of K as a whole.
  const int64_t batches = problem.c.numel() / (problem.m() * problem.n());
  const int64_t count = batches * tiles(problem.m(), kRows) * tiles(problem.n(), kCols);
  const int64_t length = is_gpu(problem.numerics.accumulation) || count >= kTargetBlocks
                             ? 0
                             : stream_length(count, tiles(problem.k(), kDepth),
                                             tiling::kLeastDepth / kDepth, kTargetBlocks);
  const Plan<kCols> plan(problem, matrix_a, matrix_b, kDepth, static_cast<uint32_t>(length));
  WEFT_LAUNCH((gemm_wgmma_fp8_kernel<TypeA, TypeB>), plan.grid, kThreads, kSharedBytes, plan.stream,
              plan.g, map_a, map_b, plan.map);
  plan.finish(problem);
}

template <class TypeA>
void run(const GemmProblem& problem) {
  problem.b.dtype() == DType::f8e4m3 ? run<TypeA, E4m3>(problem) : run<TypeA, E5m2>(problem);
}

}  // namespace

void gemm_cuda_wgmma_fp8(const GemmProblem& problem) {
  if (finish_if_empty(problem)) return;
  problem.dtype() == DType::f8e4m3 ? run<E4m3>(problem) : run<E5m2>(problem);
}

}  // namespace weft::kernels
