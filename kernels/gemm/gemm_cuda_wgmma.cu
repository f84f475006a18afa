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
// A and B may run along K or along M (N): wgmma takes both for 16-bit types, and tf32, half as many
// of K in a stage, along K alone. f32 operands that are not so are copied first where that pays
// (gemm_fits_wgmma). Limits: tensors that TMA can address, one batch dimension. Long K with few
// tiles is split (gemm_cuda_split.cuh). The walk over tiles and the way of the sums out of
// registers are in gemm_wgmma.cuh.
#include "core/view.h"
#include "kernels/gemm/gemm_wgmma.cuh"

namespace weft::kernels {
namespace {

using namespace ptx;
using namespace wgmma_tiles;

/// Of the operands, and of C unless that is f32.
template <class Type>
using Element = std::conditional_t<std::is_same_v<Type, Bf16>, bf16,
                                   std::conditional_t<std::is_same_v<Type, F16>, f16, float>>;
/// Of a stage: lines of 128 bytes where K is dense.
template <class Type>
inline constexpr int kDepth = kLine / static_cast<int>(sizeof(Element<Type>));
constexpr int kInstructionBytes = 32;  // of K

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
    return produce<kCols, kA, kB>(g, kDepth<Type>, ring, shared, full, empty, map_a, map_b);
  }

  setmaxnreg_inc<kConsumerRegisters>();
  const int consumer = warpgroup - 1;
  const int thread = static_cast<int>(threadIdx.x) % kConsumerThreads;
  const Buffer buffer = Buffer::of<kCols>(shared + kStages<kCols> * kStageBytes<kCols>, consumer);
  float sums[kCols / 2];
  for (uint32_t t = blockIdx.x; t < g.order.count(); t += gridDim.x) {
    const TilePlace tile(g.order, t);
    const int steps = g.steps(tile.part, kDepth<Type>);
    int last = 0;
    for (int step = 0; step < steps; ++step, ring.advance()) {
      mbarrier_wait(&full[ring.stage], ring.parity);
      const char* const tile_a = shared + ring.stage * kStageBytes<kCols>;
      const char* const tile_b = tile_a + kBytesA;
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kLine / kInstructionBytes; ++k) {
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
    store_tile<Element<Type>, kCols>(g, &map, buffer, tile, consumer, sums);
  }
  wait_for_stores();
}

template <class Type, int kCols>
void run_cols(const GemmProblem& problem, const TmaMatrix& a, const TmaMatrix& b,
              const KSplit& split) {
  constexpr bool kTakesBoth = sizeof(Element<Type>) == 2;
  // A row-major runs along K, B along N.
  const bool a_depth = !a.is_transposed, b_depth = b.is_transposed;
  WEFT_ASSERT(kTakesBoth || (a_depth && b_depth));
  const TensorMap map_a = matrix_map(a, problem.dtype(), a_depth ? kRows : kDepth<Type>);
  const TensorMap map_b = matrix_map(b, problem.dtype(), b_depth ? kCols : kDepth<Type>);
  const Plan plan(problem, a, b, kCols, split);
  with_flags(
      [&](auto a_is_k, auto b_is_k) {
        constexpr Major kA = a_is_k() || !kTakesBoth ? Major::kK : Major::kMn,
                        kB = b_is_k() || !kTakesBoth ? Major::kK : Major::kMn;
        WEFT_LAUNCH((gemm_wgmma_kernel<Type, kCols, kA, kB>), plan.grid, kThreads,
                    kSharedBytes<kCols>, plan.stream, plan.g, map_a, map_b, plan.map);
      },
      a_depth, b_depth);
  plan.finish(problem);
}

template <class Type>
void run(const GemmProblem& problem, const TmaMatrix& a, const TmaMatrix& b) {
  constexpr int64_t kUnits = kTilingDepth / kDepth<Type>;
  const int64_t batches = problem.c.numel() / (problem.m() * problem.n());
  const GemmTiling tiling = choose_tiling(batches, problem.m(), problem.n(), kUnits * problem.k(),
                                          true, wgmma_tile_columns());
  const KSplit split = {tiling.parts, tiling.depth / kUnits};
  if (tiling.columns == 256) return run_cols<Type, 256>(problem, a, b, split);
  if (tiling.columns == 192) return run_cols<Type, 192>(problem, a, b, split);
  run_cols<Type, 128>(problem, a, b, split);
}

}  // namespace

void gemm_cuda_wgmma(const GemmProblem& problem) {
  if (finish_if_empty(problem)) return;
  if (problem.dtype() == DType::f32) {
    const Tensor lines = k_major(problem.a, "gemm_cuda_wgmma", "A");
    const Tensor columns = k_major(view::transpose(problem.b, -1, -2), "gemm_cuda_wgmma", "B");
    TmaMatrix b = *tma_matrix(columns);
    b.is_transposed = true;  // as [K, N]
    return run<ptx::Tf32>(problem, *tma_matrix(lines), b);
  }
  const auto run_16 = problem.dtype() == DType::bf16 ? run<Bf16> : run<F16>;
  run_16(problem, *tma_matrix(problem.a), *tma_matrix(problem.b));
}

}  // namespace weft::kernels
