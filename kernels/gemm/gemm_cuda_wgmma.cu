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
// TMA can address, one batch dimension. Long K with few tiles is split (gemm_cuda_split.cuh).
#include "kernels/device/barrier.h"
#include "kernels/device/capability.h"
#include "kernels/device/copy_async.h"
#include "kernels/device/wgmma.h"
#include "kernels/gemm/gemm_bias_gradient.cuh"
#include "kernels/gemm/gemm_cuda_split.cuh"
#include "kernels/gemm/gemm_tma.h"

namespace weft::kernels {
namespace {

using namespace ptx;

constexpr int kRows = 128, kDepth = 64;
constexpr int kConsumers = 2, kConsumerThreads = 128;
constexpr int kThreads = (1 + kConsumers) * kConsumerThreads;
constexpr int kAtom = 64 * 128;  // bytes of 64 lines of 128 bytes
constexpr int kConsumerRows = kRows / kConsumers;
constexpr int kWarps = kConsumers * kConsumerThreads / 32;  // of the consumers

template <int kCols>
struct Shape {
  static constexpr int kBytesA = kRows * kDepth * 2, kBytesB = kCols * kDepth * 2;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static constexpr int kStoreBytes = kConsumerRows * kCols * 2;  // of one consumer
  static constexpr int kStages = kCols == 256 ? 3 : 4;
  static constexpr size_t kSharedBytes = size_t{kStages} * kStageBytes + kConsumers * kStoreBytes;
  /// Whether the bias gradient's first stage is part of the kernel. Beside 128 accumulators it
  /// would spill: a pass over C instead.
  static constexpr bool kSumsColumns = kCols < 256;
};

/// The tiles of all batches and parts of K, in an order in which blocks that run together share
/// rows of A and columns of B in the second-level cache: columns of 8 tiles. 32 bits
/// hold the count: divisions of 64 would cost registers beside the accumulators.
struct TileOrder {
  uint32_t rows, cols, parts, batches;

  __host__ __device__ uint32_t count() const { return rows * cols * parts * batches; }
  __device__ void at(uint32_t index, int& row, int& col, int& part, int& batch) const {
    constexpr uint32_t kGroup = 8;
    const uint32_t within = index % (rows * cols), outer = index / (rows * cols);
    part = static_cast<int>(outer % parts);
    batch = static_cast<int>(outer / parts);
    const uint32_t first = within / (kGroup * cols) * kGroup;
    const uint32_t height = min(kGroup, rows - first);
    const uint32_t rest = within - first * cols;
    row = static_cast<int>(first + rest % height);
    col = static_cast<int>(rest / height);
  }
};

struct WgmmaGemm {
  GemmArguments p;
  TileOrder order;
  KSplit split;
  KSplitWorkspace workspace;
  ColumnPartials<float> partials;
  bool stores_by_tma;
  bool repeats_a, repeats_b;  // one matrix for all batches
};

/// The k-th stage of the ring and how often it has come round.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <class Type, int kCols, Major kA, Major kB>
__global__ void __launch_bounds__(kThreads, 1)
    gemm_wgmma_kernel(const __grid_constant__ WgmmaGemm g, const __grid_constant__ TensorMap map_a,
                      const __grid_constant__ TensorMap map_b,
                      const __grid_constant__ TensorMap map_c) {
  using S = Shape<kCols>;
  WEFT_DYNAMIC_SHARED(char, shared);
  WEFT_SHARED(uint64_t, full, [S::kStages]);
  WEFT_SHARED(uint64_t, empty, [S::kStages]);
  const GemmArguments& p = g.p;
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::kStages; ++s) {
      mbarrier_init(&full[s], 1);
      mbarrier_init(&empty[s], kConsumers);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) / kConsumerThreads;
  Ring<S::kStages> ring;
  const auto steps_of = [&](int part) {
    const int64_t depth = min(p.k, (part + 1) * g.split.depth) - part * g.split.depth;
    return static_cast<int>((depth + kDepth - 1) / kDepth);
  };

  if (warpgroup == 0) {
    setmaxnreg_dec<40>();
    if (threadIdx.x != 0) return;
    for (uint32_t t = blockIdx.x; t < g.order.count(); t += gridDim.x) {
      int row, col, part, batch;
      g.order.at(t, row, col, part, batch);
      const int m0 = row * kRows, n0 = col * kCols;
      const int batch_a = g.repeats_a ? 0 : batch, batch_b = g.repeats_b ? 0 : batch;
      const int steps = steps_of(part);
      for (int step = 0; step < steps; ++step, ring.advance()) {
        const int k0 = static_cast<int>(part * g.split.depth) + step * kDepth;
        char* const tile_a = shared + ring.stage * S::kStageBytes;
        char* const tile_b = tile_a + S::kBytesA;
        uint64_t* const barrier = &full[ring.stage];
        mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
        mbarrier_arrive_expect_tx(barrier, S::kStageBytes);
        if (kA == Major::k) {
          tma_load_3d(tile_a, &map_a, barrier, k0, m0, batch_a);
        } else {
          for (int i = 0; i < kRows / 64; ++i) {
            tma_load_3d(tile_a + i * kAtom, &map_a, barrier, m0 + 64 * i, k0, batch_a);
          }
        }
        if (kB == Major::k) {
          tma_load_3d(tile_b, &map_b, barrier, k0, n0, batch_b);
        } else {
          for (int i = 0; i < kCols / 64; ++i) {
            tma_load_3d(tile_b + i * kAtom, &map_b, barrier, n0 + 64 * i, k0, batch_b);
          }
        }
      }
    }
    return;
  }

  setmaxnreg_inc<232>();
  const int consumer = warpgroup - 1;
  const int thread = static_cast<int>(threadIdx.x) % kConsumerThreads;
  const int warp = thread / 32, lane = thread % 32;
  char* const store = shared + S::kStages * S::kStageBytes + consumer * S::kStoreBytes;
  float sums[kCols / 2];
  for (uint32_t t = blockIdx.x; t < g.order.count(); t += gridDim.x) {
    int tile_row, tile_col, part, batch;
    g.order.at(t, tile_row, tile_col, part, batch);
    const int steps = steps_of(part);
    int last = 0;
    for (int step = 0; step < steps; ++step, ring.advance()) {
      mbarrier_wait(&full[ring.stage], ring.parity);
      const char* const tile_a = shared + ring.stage * S::kStageBytes;
      const char* const tile_b = tile_a + S::kBytesA;
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k) {
        const uint64_t a =
            kA == Major::k ? wgmma_descriptor_k_major(tile_a + consumer * kAtom + 32 * k)
                           : wgmma_descriptor_mn_major(tile_a + consumer * kAtom + 2048 * k, kAtom);
        const uint64_t b = kB == Major::k ? wgmma_descriptor_k_major(tile_b + 32 * k)
                                          : wgmma_descriptor_mn_major(tile_b + 2048 * k, kAtom);
        wgmma<Type, kCols, kA, kB>(sums, a, b, step > 0 || k > 0);
      }
      wgmma_commit();
      // The products of the last step have been read; those of this one run on.
      wgmma_wait<1>();
      if (step > 0 && thread == 0) mbarrier_arrive(&empty[last]);
      last = ring.stage;
    }
    wgmma_wait<0>();
    if (thread == 0) mbarrier_arrive(&empty[last]);

    const int64_t row0 = int64_t{tile_row} * kRows + consumer * kConsumerRows;
    const int64_t column0 = int64_t{tile_col} * kCols;
    const int my_row = 16 * warp + lane / 4, my_col = 2 * (lane % 4);
    if (g.stores_by_tma && g.split.parts == 1) {
      // The last tile's store has read the buffer: its issuer says so.
      if (thread == 0) tma_store_wait_read<0>();
      named_barrier_sync(1 + consumer, kConsumerThreads);
#pragma unroll
      for (int i = 0; i < kCols / 2; i += 2) {
        const int row = my_row + 8 * (i / 2 % 2), column = 8 * (i / 4) + my_col;
        float x = sums[i], y = sums[i + 1];
        if (p.bias.elements) {
          const int64_t at = column0 + column;
          if (at < p.n) x += load_one<float>(p.bias.elements, at * p.bias.column);
          if (at + 1 < p.n) y += load_one<float>(p.bias.elements, (at + 1) * p.bias.column);
        }
        // Boxes of 64 columns, swizzled as TMA expects.
        const int offset = column / 64 * kAtom + row * 128 + column % 64 * 2;
        const int swizzled = offset ^ ((offset >> 7 & 7) << 4);
        store_one(Elements::at(store + swizzled, p.c.elements.dtype), 0, x);
        store_one(Elements::at(store + swizzled, p.c.elements.dtype), 1, y);
      }
      fence_proxy_async();
      named_barrier_sync(1 + consumer, kConsumerThreads);
      if (thread == 0) {
        for (int i = 0; i < kCols / 64; ++i) {
          tma_store_3d(&map_c, store + i * kAtom, static_cast<int>(column0) + 64 * i,
                       static_cast<int>(row0), batch);
        }
        tma_store_commit();
      }
      continue;
    }
    const GemmArguments::Output to = p.output(batch);
    // A warp's 16 rows are a group of the column sums.
    const int64_t group = (int64_t{batch} * g.order.rows + tile_row) * kWarps + consumer * 4 + warp;
#pragma unroll
    for (int i = 0; i < kCols / 2; i += 4) {
      float column_sums[2] = {};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t row = row0 + my_row + 8 * (e / 2);
        const int64_t column = column0 + 2 * i + my_col + e % 2;
        if (row >= p.m || column >= p.n) continue;
        if (g.split.parts > 1) {
          *g.workspace.at(p, g.split.parts, batch, part, row, column) = sums[i + e];
        } else {
          const float stored = p.finish(to, row, column, sums[i + e]);
          if (S::kSumsColumns) column_sums[e % 2] += stored;
        }
      }
      if (S::kSumsColumns && g.partials)
        put_column_sums(g.partials, p, group, column0 + 2 * i, column_sums);
    }
  }
  if (thread == 0) tma_store_wait_read<0>();
}

/// The operand's map: boxes of `lines` lines of 64 elements along the dimension without gaps.
TensorMap operand_map(const TmaMatrix& matrix, DType dtype, uint32_t lines) {
  TensorMapSpec spec{
      .base = matrix.base,
      .dtype = dtype,
      .rank = 3,
      .dims = {static_cast<uint64_t>(matrix.length), static_cast<uint64_t>(matrix.lines),
               static_cast<uint64_t>(matrix.batches)},
      .strides = {static_cast<uint64_t>(matrix.line_bytes),
                  static_cast<uint64_t>(matrix.batch_bytes)},
      .box = {64, lines, 1},
      .swizzle = TmaSwizzle::bytes_128};
  return make_tensor_map(spec);
}

template <class Type, int kCols>
void run_cols(const GemmProblem& problem) {
  using S = Shape<kCols>;
  const TmaMatrix a = *tma_matrix(problem.a), b = *tma_matrix(problem.b);
  const auto c = tma_matrix(problem.c);
  WgmmaGemm g = {};
  g.p = GemmArguments(problem);
  const int64_t rows = tiles(g.p.m, kRows), cols = tiles(g.p.n, kCols);
  g.split = KSplit::choose(g.p.batches * rows * cols, g.p.k, kDepth);
  WEFT_ASSERT(rows * cols * g.split.parts * g.p.batches < int64_t{1} << 31);
  g.order = {static_cast<uint32_t>(rows), static_cast<uint32_t>(cols),
             static_cast<uint32_t>(g.split.parts), static_cast<uint32_t>(g.p.batches)};
  g.stores_by_tma = c && !c->is_transposed && problem.c.itemsize() == 2 &&
                    c->batches == g.p.batches && problem.epilogue == Epilogue::none &&
                    !problem.accumulate && !problem.residual.defined();
  g.repeats_a = a.batches == 1;
  g.repeats_b = b.batches == 1;
  const Tensor sums = KSplitWorkspace::allocate(problem, g.p, g.split);
  g.workspace = KSplitWorkspace(sums);
  Tensor column_sums;
  const bool sums_in_kernel = S::kSumsColumns && g.p.sums_columns && g.split.parts == 1;
  if (sums_in_kernel) {
    column_sums = empty_partials<float>(problem, g.p.batches * rows * kWarps);
    g.partials.sums = column_sums.data<float>();
  }
  // A row-major runs along K, B along N.
  const bool a_depth = !a.is_transposed, b_depth = b.is_transposed;
  const TensorMap map_a = operand_map(a, problem.dtype(), a_depth ? kRows : kDepth);
  const TensorMap map_b = operand_map(b, problem.dtype(), b_depth ? kCols : kDepth);
  const TensorMap map_c =
      g.stores_by_tma ? operand_map(*c, problem.c.dtype(), kConsumerRows) : map_a;
  const auto grid = static_cast<unsigned>(std::min<int64_t>(
      multiprocessor_count(problem.device().index), rows * cols * g.split.parts * g.p.batches));
  const runtime::StreamHandle stream = current_stream_handle(problem.device());
  if (a_depth && b_depth) {
    WEFT_LAUNCH((gemm_wgmma_kernel<Type, kCols, Major::k, Major::k>), grid, kThreads,
                S::kSharedBytes, stream, g, map_a, map_b, map_c);
  } else if (a_depth) {
    WEFT_LAUNCH((gemm_wgmma_kernel<Type, kCols, Major::k, Major::mn>), grid, kThreads,
                S::kSharedBytes, stream, g, map_a, map_b, map_c);
  } else if (b_depth) {
    WEFT_LAUNCH((gemm_wgmma_kernel<Type, kCols, Major::mn, Major::k>), grid, kThreads,
                S::kSharedBytes, stream, g, map_a, map_b, map_c);
  } else {
    WEFT_LAUNCH((gemm_wgmma_kernel<Type, kCols, Major::mn, Major::mn>), grid, kThreads,
                S::kSharedBytes, stream, g, map_a, map_b, map_c);
  }
  if (g.split.parts > 1) join_parts(g.p, g.workspace, g.split.parts, stream);
  if (sums_in_kernel) return join_columns<float>(problem, g.p, column_sums);
  sum_columns<float>(problem, g.p);
}

/// The widest tile that leaves the fewest multiprocessors idle in the last wave.
int choose_cols(const GemmProblem& p) {
  const int64_t batches = p.c.numel() / (p.m() * p.n());
  int best = 128;
  double best_cost = INFINITY;
  for (int cols : {256, 192, 128}) {
    const int64_t count = batches * tiles(p.m(), kRows) * tiles(p.n(), cols);
    const int64_t waves = (count + kTargetBlocks - 1) / kTargetBlocks;
    const double cost = static_cast<double>(waves) * cols;
    if (cost < best_cost) {
      best = cols;
      best_cost = cost;
    }
  }
  return best;
}

template <class Type>
void run(const GemmProblem& problem) {
  switch (choose_cols(problem)) {
    case 256:
      return run_cols<Type, 256>(problem);
    case 192:
      return run_cols<Type, 192>(problem);
    default:
      return run_cols<Type, 128>(problem);
  }
}

}  // namespace

void gemm_cuda_wgmma(const GemmProblem& problem) {
  if (gemm_is_empty(problem)) return;
  problem.dtype() == DType::bf16 ? run<Bf16>(problem) : run<F16>(problem);
}

}  // namespace weft::kernels
