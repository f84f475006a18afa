// Rung 5, Hopper: wgmma on tiles that TMA brings, in a persistent, warp-specialised kernel
// (sm_90a).
//
// A block of three warpgroups walks over output tiles of 128 x kCols. One thread of the first, the
// producer, keeps a ring of stages of 64 of K full; the two others, the consumers, multiply 64 rows
// each, their sums in registers, which the producer gives up (setmaxnreg). When a tile is done a
// consumer rounds it into shared memory and TMA stores it while the next tile's products begin.
//
//   barrier      counts                        says
//   full[s]      the producer's announcement   the stage's bytes have come
//                and the bytes of both tiles
//   empty[s]     one thread per consumer       its products have read the stage
//
// A stage's parity flips each time round the ring; the first wait on `empty` passes at once.
// A and B may run along K or along M (N): wgmma takes both for 16-bit types. Limits: tensors that
// TMA can address, one batch dimension. Long K with few tiles is split (gemm_cuda_split.cuh). The
// walk over tiles and the way of the sums out of registers are in gemm_wgmma.cuh.
#include "kernels/gemm/gemm_wgmma.cuh"

namespace weft::kernels {
namespace {

using namespace ptx;
using namespace wgmma_tiles;

constexpr int kDepth = 64;  // of a stage: lines of 128 bytes where K is dense

template <int kCols>
inline constexpr int kStages = kCols == 256 ? 3 : 4;
template <int kCols>
inline constexpr size_t kSharedBytes =
    size_t{kStages<kCols>} * kStageBytes<kCols> + kBufferBytes<kCols>;

template <class Type, int kCols, Major kA, Major kB>
__global__ void __launch_bounds__(kThreads, 1)
    gemm_wgmma_kernel(const __grid_constant__ Arguments g, const __grid_constant__ TensorMap map_a,
                      const __grid_constant__ TensorMap map_b,
                      const __grid_constant__ TensorMap map) {
  WEFT_DYNAMIC_SHARED(char, shared);
  WEFT_SHARED(uint64_t, full, [kStages<kCols>]);
  WEFT_SHARED(uint64_t, empty, [kStages<kCols>]);
  start_barriers<kStages<kCols>>(full, empty);
  const int warpgroup = static_cast<int>(threadIdx.x) / kConsumerThreads;
  Ring<kStages<kCols>> ring;

  if (warpgroup == 0) {
    return produce<kCols, kA, kB>(g, kDepth, ring, shared, full, empty, map_a, map_b);
  }

  setmaxnreg_inc<kConsumerRegisters>();
  const int consumer = warpgroup - 1;
  const int thread = static_cast<int>(threadIdx.x) % kConsumerThreads;
  const Buffer buffer = Buffer::of<kCols>(shared + kStages<kCols> * kStageBytes<kCols>, consumer);
  float sums[kCols / 2];
  for (uint32_t t = blockIdx.x; t < g.order.count(); t += gridDim.x) {
    const TilePlace tile(g.order, t);
    const int steps = g.steps(tile.part, kDepth);
    int last = 0;
    for (int step = 0; step < steps; ++step, ring.advance()) {
      mbarrier_wait(&full[ring.stage], ring.parity);
      const char* const tile_a = shared + ring.stage * kStageBytes<kCols>;
      const char* const tile_b = tile_a + kBytesA;
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k) {
        const uint64_t a =
            kA == Major::kK
                ? wgmma_descriptor_k_major(tile_a + consumer * kAtom + 32 * k)
                : wgmma_descriptor_mn_major(tile_a + consumer * kAtom + 2048 * k, kAtom);
        const uint64_t b = kB == Major::kK ? wgmma_descriptor_k_major(tile_b + 32 * k)
                                           : wgmma_descriptor_mn_major(tile_b + 2048 * k, kAtom);
        wgmma<Type, kCols, kA, kB>(sums, a, b, step > 0 || k > 0);
      }
      wgmma_commit();
      if (step == 0) load_shifts<kCols>(g, buffer, tile);
      // The products of the last step have been read; those of this one run on.
      wgmma_wait<1>();
      if (step > 0 && thread == 0) mbarrier_arrive(&empty[last]);
      last = ring.stage;
    }
    wgmma_wait<0>();
    if (thread == 0) mbarrier_arrive(&empty[last]);
    using Narrow = std::conditional_t<std::is_same_v<Type, Bf16>, bf16, f16>;
    store_tile<Narrow, kCols>(g, &map, buffer, tile, consumer, sums);
  }
  wait_for_stores();
}

template <class Type, int kCols>
void run_cols(const GemmProblem& problem, const KSplit& split) {
  const TmaMatrix a = *tma_matrix(problem.a), b = *tma_matrix(problem.b);
  // A row-major runs along K, B along N.
  const bool a_depth = !a.is_transposed, b_depth = b.is_transposed;
  const TensorMap map_a = matrix_map(a, problem.dtype(), a_depth ? kRows : kDepth);
  const TensorMap map_b = matrix_map(b, problem.dtype(), b_depth ? kCols : kDepth);
  const Plan plan(problem, a, b, kCols, split);
  with_flags(
      [&](auto a_is_k, auto b_is_k) {
        constexpr Major kA = a_is_k() ? Major::kK : Major::kMn,
                        kB = b_is_k() ? Major::kK : Major::kMn;
        WEFT_LAUNCH((gemm_wgmma_kernel<Type, kCols, kA, kB>), plan.grid, kThreads,
                    kSharedBytes<kCols>, plan.stream, plan.g, map_a, map_b, plan.map);
      },
      a_depth, b_depth);
  plan.finish(problem);
}

template <class Type>
void run(const GemmProblem& problem) {
  const int64_t batches = problem.c.numel() / (problem.m() * problem.n());
  const GemmTiling tiling =
      choose_tiling(batches, problem.m(), problem.n(), problem.k(), true, wgmma_tile_columns());
  const KSplit split = {tiling.parts, tiling.depth};
  if (tiling.columns == 256) return run_cols<Type, 256>(problem, split);
  if (tiling.columns == 192) return run_cols<Type, 192>(problem, split);
  run_cols<Type, 128>(problem, split);
}

}  // namespace

void gemm_cuda_wgmma(const GemmProblem& problem) {
  if (finish_if_empty(problem)) return;
  problem.dtype() == DType::bf16 ? run<Bf16>(problem) : run<F16>(problem);
}

}  // namespace weft::kernels
