// Rung 4, tensor cores: mma.sync on tiles that cp.async brings in a ring of stages.
//
// A block of 4 or 8 warps owns a 64 x 64 or 128 x 128 tile of C, a warp 32 x 32 or 64 x 32 of it.
// While one stage is multiplied, the next two are on their way. Tiles lie in shared memory as in
// global memory, 16 bytes to a chunk, along K or along M (N); chunks are permuted within the banks'
// 128 bytes so that the 8 rows that ldmatrix reads together meet all banks; the transposing
// ldmatrix turns the second layout. Operands along neither dimension take another rung.
//
//   hazard                                             what orders it
//   a stage is read before its copies are complete     cp_async_wait, then the barrier
//   a stage is overwritten while a warp reads it       the same barrier: it was read before it
#include "kernels/device/copy_async.h"
#include "kernels/device/mma.h"
#include "kernels/gemm/gemm_bias_gradient.cuh"
#include "kernels/gemm/gemm_cuda_split.cuh"

namespace weft::kernels {
namespace {

using namespace ptx;

constexpr int kDepth = 32, kStages = 3;
constexpr int kChunk = 8;  // elements in 16 bytes

/// A tile of kSize rows of A (columns of B) by kDepth, one stage of it.
template <bool kAlongDepth, int kSize>
struct Tile {
  static constexpr int kChunksPerLine = (kAlongDepth ? kDepth : kSize) / kChunk;
  static constexpr int kLines = kAlongDepth ? kSize : kDepth;

  /// Where chunk `chunk` of a line lies. Lines of 64 bytes: two share 128 bytes.
  static __device__ __forceinline__ int offset(int line, int chunk) {
    const int swizzle = kAlongDepth ? line / 2 % 4 : line % 8;
    return (line * kChunksPerLine + (chunk ^ swizzle)) * kChunk;
  }

  /// Starts the copies of the part of a matrix that begins at (at, depth); what lies outside is 0.
  /// `line_stride`: elements between lines in global memory.
  template <int kThreads>
  static __device__ __forceinline__ void load(uint16_t* tile, const uint16_t* from,
                                              int64_t line_stride, int64_t at, int64_t n_at,
                                              int64_t depth, int64_t n_depth) {
    static_assert(kLines * kChunksPerLine % kThreads == 0);
#pragma unroll
    for (int i = 0; i < kLines * kChunksPerLine / kThreads; ++i) {
      const int e = static_cast<int>(threadIdx.x) + i * kThreads;
      const int line = e / kChunksPerLine, chunk = e % kChunksPerLine;
      const int64_t line_at = (kAlongDepth ? at : depth) + line;
      const int64_t first = (kAlongDepth ? depth : at) + chunk * kChunk;
      const int64_t lines = kAlongDepth ? n_at : n_depth, length = kAlongDepth ? n_depth : n_at;
      const int64_t inside =
          line_at < lines ? max(int64_t{0}, min(int64_t{kChunk}, length - first)) : int64_t{0};
      cp_async<16>(tile + offset(line, chunk),
                   inside > 0 ? from + line_at * line_stride + first : from,
                   static_cast<int>(inside) * 2);
    }
  }

  /// Four 8x8 matrices: two blocks of 8 along M (N), `at` and at + 8, by two of K, depth and
  /// depth + 8. Matrix j holds block kDepthFirst ? j / 2 : j % 2 and the other half of K.
  template <bool kDepthFirst>
  static __device__ __forceinline__ void fragment(uint32_t (&r)[4], const uint16_t* tile, int at,
                                                  int depth) {
    const int lane = static_cast<int>(threadIdx.x) % 32, matrix = lane / 8, within = lane % 8;
    const int block = at / 8 + (kDepthFirst ? matrix / 2 : matrix % 2);
    const int half = depth / 8 + (kDepthFirst ? matrix % 2 : matrix / 2);
    if (kAlongDepth) {
      ldmatrix_x4(r, tile + offset(block * 8 + within, half));
    } else {
      ldmatrix_x4_trans(r, tile + offset(half * 8 + within, block));
    }
  }
};

template <bool kIsBf16>
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4],
                                         const uint32_t (&b)[2]) {
  if constexpr (kIsBf16) {
    mma_m16n8k16_bf16(d, a, b);
  } else {
    mma_m16n8k16_f16(d, a, b);
  }
}

template <int kTile>
struct Shape {
  static constexpr int kWarpRows = kTile / 2, kWarpCols = 32;
  static constexpr int kWarps = 2 * (kTile / kWarpCols), kThreads = kWarps * 32;
  static constexpr size_t kSharedBytes = size_t{kStages} * 2 * kTile * kDepth * sizeof(uint16_t);
};

template <int kTile, bool kIsBf16, bool kADepth, bool kBDepth>
__global__ void __launch_bounds__(Shape<kTile>::kThreads)
    gemm_mma_kernel(const __grid_constant__ GemmArguments p, KSplit split,
                    KSplitWorkspace workspace, ColumnPartials<float> partials) {
  using S = Shape<kTile>;
  using TileA = Tile<kADepth, kTile>;
  using TileB = Tile<kBDepth, kTile>;
  constexpr int kThreads = S::kThreads;
  constexpr int kRowBlocks = S::kWarpRows / 16, kColBlocks = S::kWarpCols / 8;
  WEFT_DYNAMIC_SHARED(uint16_t, stages);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_row = warp % 2 * S::kWarpRows, warp_col = warp / 2 * S::kWarpCols;
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t column0 = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t a_stride = kADepth ? p.a.row : p.a.column;
  const int64_t b_stride = kBDepth ? p.b.column : p.b.row;
  for (int64_t z = blockIdx.z; z < p.batches * split.parts; z += gridDim.z) {
    const int64_t batch = z / split.parts;
    const int part = static_cast<int>(z % split.parts);
    const int64_t depth0 = part * split.depth, depth1 = min(p.k, depth0 + split.depth);
    const auto* a = static_cast<const uint16_t*>(p.a.elements.data) + p.base(p.a, batch);
    const auto* b = static_cast<const uint16_t*>(p.b.elements.data) + p.base(p.b, batch);
    const int steps = static_cast<int>((depth1 - depth0 + kDepth - 1) / kDepth);
    const auto tile_a = [&](int step) { return stages + step % kStages * 2 * kTile * kDepth; };
    const auto tile_b = [&](int step) { return tile_a(step) + kTile * kDepth; };
    const auto load = [&](int step) {
      if (step < steps) {
        const int64_t depth = depth0 + static_cast<int64_t>(step) * kDepth;
        TileA::template load<kThreads>(tile_a(step), a, a_stride, row0, p.m, depth, depth1);
        TileB::template load<kThreads>(tile_b(step), b, b_stride, column0, p.n, depth, depth1);
      }
      cp_async_commit();  // an empty group at the end keeps the count
    };
    float sums[kRowBlocks][kColBlocks][4] = {};
    for (int step = 0; step < kStages - 1; ++step) load(step);
    for (int step = 0; step < steps; ++step) {
      cp_async_wait<kStages - 2>();
      __syncthreads();
      load(step + kStages - 1);
#pragma unroll
      for (int depth = 0; depth < kDepth; depth += 16) {
        uint32_t fragment_a[kRowBlocks][4], fragment_b[kColBlocks][2];
#pragma unroll
        for (int i = 0; i < kRowBlocks; ++i) {
          TileA::template fragment<false>(fragment_a[i], tile_a(step), warp_row + 16 * i, depth);
        }
#pragma unroll
        for (int j = 0; j < kColBlocks; j += 2) {
          uint32_t two[4];
          TileB::template fragment<true>(two, tile_b(step), warp_col + 8 * j, depth);
          fragment_b[j][0] = two[0];
          fragment_b[j][1] = two[1];
          fragment_b[j + 1][0] = two[2];
          fragment_b[j + 1][1] = two[3];
        }
#pragma unroll
        for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
          for (int j = 0; j < kColBlocks; ++j) {
            multiply<kIsBf16>(sums[i][j], fragment_a[i], fragment_b[j]);
          }
        }
      }
    }
    cp_async_wait<0>();
    __syncthreads();  // the next round's first copies overwrite stages that were just read
    const GemmArguments::Output to = p.output(batch);
    // A warp's rows are a group of the column sums.
    const int64_t group = (batch * gridDim.y + blockIdx.y) * 2 + warp % 2;
#pragma unroll
    for (int j = 0; j < kColBlocks; ++j) {
      float column_sums[2] = {};
#pragma unroll
      for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int64_t row = row0 + warp_row + 16 * i + lane / 4 + 8 * (e / 2);
          const int64_t column = column0 + warp_col + 8 * j + 2 * (lane % 4) + e % 2;
          if (row >= p.m || column >= p.n) continue;
          if (split.parts > 1) {
            *workspace.at(p, split.parts, batch, part, row, column) = sums[i][j][e];
          } else {
            column_sums[e % 2] += p.finish(to, row, column, sums[i][j][e]);
          }
        }
      }
      if (partials) put_column_sums(partials, p, group, column0 + warp_col + 8 * j, column_sums);
    }
  }
}

template <int kTile, bool kIsBf16>
void run_tile(const GemmProblem& problem, const GemmArguments& p) {
  using S = Shape<kTile>;
  const int64_t output_tiles = p.batches * tiles(p.m, kTile) * tiles(p.n, kTile);
  const KSplit split = KSplit::choose(output_tiles, p.k, kDepth);
  const runtime::StreamHandle stream = current_stream_handle(problem.device());
  const Tensor sums = KSplitWorkspace::allocate(problem, p, split);
  const KSplitWorkspace workspace(sums);
  ColumnPartials<float> partials;
  Tensor column_sums;
  const bool sums_in_kernel = p.sums_columns && split.parts == 1;
  if (sums_in_kernel) {
    column_sums = empty_partials<float>(problem, p.batches * tiles(p.m, kTile) * 2);
    partials.sums = column_sums.data<float>();
  }
  const dim3 grid(tiles(p.n, kTile), tiles(p.m, kTile), grid_batches(p.batches * split.parts));
  const bool a_depth = p.a.column == 1 || p.k == 1, b_depth = p.b.row == 1 || p.k == 1;
  if (a_depth && b_depth) {
    WEFT_LAUNCH((gemm_mma_kernel<kTile, kIsBf16, true, true>), grid, S::kThreads, S::kSharedBytes,
                stream, p, split, workspace, partials);
  } else if (a_depth) {
    WEFT_LAUNCH((gemm_mma_kernel<kTile, kIsBf16, true, false>), grid, S::kThreads, S::kSharedBytes,
                stream, p, split, workspace, partials);
  } else if (b_depth) {
    WEFT_LAUNCH((gemm_mma_kernel<kTile, kIsBf16, false, true>), grid, S::kThreads, S::kSharedBytes,
                stream, p, split, workspace, partials);
  } else {
    WEFT_LAUNCH((gemm_mma_kernel<kTile, kIsBf16, false, false>), grid, S::kThreads, S::kSharedBytes,
                stream, p, split, workspace, partials);
  }
  if (split.parts > 1) join_parts(p, workspace, split.parts, stream);
  if (sums_in_kernel) return join_columns<float>(problem, p, column_sums);
  sum_columns<float>(problem, p);
}

}  // namespace

void gemm_cuda_mma(const GemmProblem& problem) {
  if (gemm_is_empty(problem)) return;
  const GemmArguments p(problem);
  const bool is_large = p.batches * tiles(p.m, 128) * tiles(p.n, 128) >= kTargetBlocks;
  const bool is_bf16 = problem.dtype() == DType::bf16;
  if (is_large) {
    is_bf16 ? run_tile<128, true>(problem, p) : run_tile<128, false>(problem, p);
  } else {
    is_bf16 ? run_tile<64, true>(problem, p) : run_tile<64, false>(problem, p);
  }
}

}  // namespace weft::kernels
