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
// Two blocks may be a cluster: they have tiles one below the other, and each brings half of the
// columns of B to both (TMA's multicast), so that a step of two tiles of 192 columns moves 56 KiB
// out of the second-level cache in place of 80. Each stage of theirs is empty when the consumers of
// both have read it, and the blocks exit together. An H100 took longer so: it is left to those who
// ask for it.
//
// In ping-pong each consumer has a tile of its own, all 128 rows, and multiplies while the other
// stores: a tile's end, which a GELU makes as long as 500 of K, takes no time of the tensor core.
// They take turns at the products, in the order of the stages; a named barrier gives the turn when
// all of a tile's stages are seen full. So each waits for the phase that comes next, and no parity
// is mistaken for that of two rounds ago. 192 sums a thread leave no registers for ends other than
// those by TMA. kernels/gemm/gemm_tiling.h says where that is chosen.
//
// A tall tile has 256 rows, 128 for each consumer: 192 sums a thread, too, and the fewest bytes for
// each product.
//
// A stage's parity flips each time round the ring; the first wait on `empty` passes at once.
// A and B may run along K or along M (N): wgmma takes both for 16-bit types, and tf32, half as many
// of K in a stage, along K alone. f32 operands that are not so are copied first where that pays
// (gemm_fits_wgmma). Limits: tensors that TMA can address, one batch dimension. Long K of few
// tiles is streamed (gemm_cuda_stream.cuh). The walk over tiles and the way of the sums out of
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

template <int kCols, int kTileRows>
inline constexpr int kStages = kTileRows > kRows ? 3
                               : kCols > 128     ? 4
                                                 : 6;
template <int kCols, int kTileRows>
inline constexpr int kStagesBytes = kStages<kCols, kTileRows>* kStageBytes<kCols, kTileRows>;

/// How the consumers share tiles: of 128 rows, 64 each; in ping-pong one after the other; of tall
/// tiles' 256 rows 128 each.
enum class Sharing : uint8_t { kHalves, kPingPong, kTall };
template <Sharing kSharing>
inline constexpr int kTileRows = kSharing == Sharing::kTall ? 2 * kRows : kRows;
/// Of 64 rows, that a consumer has of a tile.
template <Sharing kSharing>
inline constexpr int kBlocks = kSharing == Sharing::kHalves ? 1 : 2;

/// An operand's descriptor, and the bytes from one instruction's K to the next one's.
template <Major kMajor>
__device__ __forceinline__ uint64_t operand(const char* tile) {
  return kMajor == Major::kK ? wgmma_descriptor_k_major(tile)
                             : wgmma_descriptor_mn_major(tile, kAtom);
}
template <Major kMajor>
inline constexpr int kInstructionStep = kMajor == Major::kK ? kInstructionBytes : 2048;

/// A consumer's part.
template <class Type, int kCols, Major kA, Major kB, Sharing kSharing>
__device__ __forceinline__ void consume(const Arguments& g, int consumer, char* shared,
                                        uint64_t* full, uint64_t* empty, const TensorMap& map) {
  constexpr int kHeight = kTileRows<kSharing>, kOwn = kBlocks<kSharing>;
  Ring<kStages<kCols, kHeight>> ring;
  setmaxnreg_inc<kConsumerRegisters>();
  const Buffer buffer = Buffer::of<kCols>(shared + kStagesBytes<kCols, kHeight>, consumer);
  constexpr bool kPingPong = kSharing == Sharing::kPingPong;
  const int first = kPingPong ? 0 : consumer * kOwn;  // block of 64 rows
  // In ping-pong barriers 1 + 2 and 2 + 2 are the consumers' turns. Both pass each: one waits, the
  // other gives it.
  constexpr int kBothThreads = kConsumers * kConsumerThreads;
  const auto take_turn = [=] { named_barrier_sync(1 + kConsumers + consumer, kBothThreads); };
  const auto give_turn = [=] {
    named_barrier_arrive(1 + kConsumers + (consumer ^ 1), kBothThreads);
  };
  if (kPingPong && consumer == 1) give_turn();
  // In ping-pong: whose the tile is, and how many come after it.
  int whose = 0;
  uint32_t left = (g.stream.units - g.order.first() + g.order.step - 1) / g.order.step;
  float sums[kOwn][kCols / 2];
  g.for_each_piece([&](const TilePlace& tile, uint32_t slot, int, int steps) {
    if (kPingPong) {
      const bool is_own = whose == consumer;
      whose ^= 1;
      --left;
      if (!is_own) return ring.skip(steps);
    }
    if (kOwn > 1) {
      // While the other multiplies. ptxas takes sums that the first products overwrite for read,
      // and would keep them in registers through the last tile's end.
#pragma unroll
      for (auto& block : sums) {
#pragma unroll
        for (float& sum : block) sum = 0;
      }
    }
    if (kPingPong) take_turn();
    int last = 0;
    for (int step = 0; step < steps; ++step, ring.advance()) {
      mbarrier_wait(&full[ring.stage], ring.parity);
      const char* const stage = shared + ring.stage * kStageBytes<kCols, kHeight>;
      const uint64_t rows = operand<kA>(stage + first * kAtom),
                     columns = operand<kB>(stage + kHeight * kLine);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kLine / kInstructionBytes; ++k) {
        const uint64_t b = wgmma_descriptor_behind(columns, k * kInstructionStep<kB>);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          const uint64_t a = wgmma_descriptor_behind(rows, i * kAtom + k * kInstructionStep<kA>);
          wgmma<Type, kCols, kA, kB>(sums[i], a, b, kOwn > 1 || step > 0 || k > 0);
        }
      }
      wgmma_commit();
      if (step == 0) load_shifts<kCols>(g, buffer, tile);
      // The products of the last step have been read; those of this one run on.
      wgmma_wait<1>();
      if (step > 0) release_stage(&empty[last], g.order.blocks);
      last = ring.stage;
    }
    if (kPingPong && left > 0) give_turn();
    wgmma_wait<0>();
    release_stage(&empty[last], g.order.blocks);
    store_tile<Element<Type>, kCols, kOwn>(g, &map, buffer, tile, slot, first, sums);
  });
  wait_for_stores();
}

template <class Type, int kCols, Major kA, Major kB, Sharing kSharing>
__global__ void __launch_bounds__(kThreads, 1)
    gemm_wgmma_kernel(const __grid_constant__ Arguments g, const __grid_constant__ TensorMap map_a,
                      const __grid_constant__ TensorMap map_b,
                      const __grid_constant__ TensorMap map) {
  WEFT_DYNAMIC_SHARED(char, shared);
  constexpr int kHeight = kTileRows<kSharing>, kCount = kStages<kCols, kHeight>;
  WEFT_SHARED(uint64_t, full, [kCount]);
  WEFT_SHARED(uint64_t, empty, [kCount]);
  start_barriers<kCount>(full, empty, kSharing == Sharing::kPingPong ? 1 : kConsumers,
                         g.order.blocks);
  const int warpgroup = uniform_warpgroup();
  if (warpgroup == 0) {
    Ring<kCount> ring;
    produce<kCols, kA, kB, kHeight>(g, kDepth<Type>, ring, shared, full, empty, map_a, map_b);
  } else {
    consume<Type, kCols, kA, kB, kSharing>(g, warpgroup - 1, shared, full, empty, map);
  }
  meet_cluster(g.order.blocks);
}

template <class Type, int kCols, Sharing kSharing = Sharing::kHalves>
void run_cols(const GemmProblem& problem, const TmaMatrix& a, const TmaMatrix& b, uint32_t length,
              unsigned blocks) {
  constexpr bool kTakesBoth = sizeof(Element<Type>) == 2;
  constexpr int kHeight = kTileRows<kSharing>;
  // A row-major runs along K, B along N.
  const bool a_depth = !a.is_transposed, b_depth = b.is_transposed;
  WEFT_ASSERT(kTakesBoth || (a_depth && b_depth));
  const TensorMap map_a = matrix_map(a, problem.dtype(), a_depth ? kHeight : kDepth<Type>);
  const TensorMap map_b = matrix_map(
      b, problem.dtype(), static_cast<uint32_t>(b_depth ? kCols : kDepth<Type>) / blocks);
  constexpr size_t kSharedBytes = kStagesBytes<kCols, kHeight> + kBufferBytes<kCols>;
  const Plan<kCols> plan(problem, a, b, kDepth<Type>, length, blocks, kHeight / kRows);
  with_flags(
      [&](auto a_is_k, auto b_is_k) {
        constexpr Major kA = a_is_k() || !kTakesBoth ? Major::kK : Major::kMn,
                        kB = b_is_k() || !kTakesBoth ? Major::kK : Major::kMn;
        WEFT_LAUNCH_CLUSTER((gemm_wgmma_kernel<Type, kCols, kA, kB, kSharing>), dim3(blocks),
                            plan.grid, kThreads, kSharedBytes, plan.stream, plan.g, map_a, map_b,
                            plan.map);
      },
      a_depth, b_depth);
  plan.finish(problem);
}

/// What a tile's end takes, as choose_tiling counts it.
TileEnd end_of(const GemmProblem& problem) {
  constexpr int kInstructions[] = {0, 21, 27};  // of an element's GELU (weft kernels sass)
  return {tiling::kEnd + tiling::kInstruction * kInstructions[static_cast<int>(problem.epilogue)],
          stored_by_tma(problem).has_value()};
}

template <class Type>
void run(const GemmProblem& problem, const TmaMatrix& a, const TmaMatrix& b) {
  constexpr int64_t kUnits = kTilingDepth / kDepth<Type>;
  const int64_t batches = problem.c.numel() / (problem.m() * problem.n());
  const GemmTiling tiling = choose_tiling(batches, problem.m(), problem.n(), kUnits * problem.k(),
                                          true, end_of(problem), forced_wgmma_tile());
  const auto length = static_cast<uint32_t>(tiling.length);
  const unsigned blocks = tiling.paired ? 2 : 1;
  if constexpr (sizeof(Element<Type>) == 2) {
    if (tiling.ping_pong) {
      return run_cols<Type, kPingPongColumns, Sharing::kPingPong>(problem, a, b, length, blocks);
    }
    if (tiling.rows > tiling::kRows) {
      return run_cols<Type, kTallColumns, Sharing::kTall>(problem, a, b, length, blocks);
    }
  }
  if (tiling.columns == 256) return run_cols<Type, 256>(problem, a, b, length, blocks);
  if (tiling.columns == 192) return run_cols<Type, 192>(problem, a, b, length, blocks);
  run_cols<Type, 128>(problem, a, b, length, blocks);
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
