// What the mma.sync rungs of gemm share: the ring of stages that cp.async fills, the walk over K,
// and the way of a tile's sums out of registers.
//
// A block of 4 or 8 warps owns a 64 x 64 or 128 x 128 tile of C, a warp 32 x 32 or 64 x 32 of it.
// While one stage is multiplied, the next ones are on their way. A rung says what its format is,
// with the names that Sixteen (gemm_cuda_mma.cu) has, and how tiles of A and of B get from global
// memory to a stage (load) and from there to fragments (left, right).
//
//   hazard                                             what orders it
//   a stage is read before its copies are complete     cp_async_wait, then the barrier
//   a stage is overwritten while a warp reads it       the same barrier: it was read before it
#pragma once

#include "kernels/device/copy_async.h"
#include "kernels/device/instances.h"
#include "kernels/device/mma.h"
#include "kernels/gemm/gemm_cuda_split.cuh"

namespace weft::kernels::mma_tiles {

template <int kTile>
struct Shape {
  static constexpr int kWarpRows = kTile / 2, kWarpCols = 32;
  static constexpr int kWarps = 2 * (kTile / kWarpCols), kThreads = kWarps * kWarp;
  static constexpr int kRowBlocks = kWarpRows / 16, kColBlocks = kWarpCols / 8;
};

template <class Format, int kTile, class TileA, class TileB>
__global__ void __launch_bounds__(Shape<kTile>::kThreads)
    gemm_mma_kernel(const __grid_constant__ GemmArguments p, KSplit split,
                    KSplitWorkspace workspace, ColumnPartials<float> partials) {
  using S = Shape<kTile>;
  using Element = typename Format::Element;
  constexpr int kThreads = S::kThreads, kDepth = Format::kStageDepth, kStages = Format::kStages;
  WEFT_DYNAMIC_SHARED(Element, stages);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp_row = warp % 2 * S::kWarpRows, warp_col = warp / 2 * S::kWarpCols;
  const BlockTile tile(p, kTile);
  const int64_t row0 = int64_t{tile.row} * kTile;
  const int64_t column0 = int64_t{tile.column} * kTile;
  for (int64_t z = blockIdx.z; z < p.batches * split.parts; z += gridDim.z) {
    const int64_t batch = z / split.parts;
    const int part = static_cast<int>(z % split.parts);
    const int64_t depth0 = part * split.depth, depth1 = min(p.k, depth0 + split.depth);
    const auto* a = static_cast<const Element*>(p.a.elements.data) + p.base(p.a, batch);
    const auto* b = static_cast<const Element*>(p.b.elements.data) + p.base(p.b, batch);
    const int steps = static_cast<int>((depth1 - depth0 + kDepth - 1) / kDepth);
    const auto tile_a = [&](int step) {
      return stages + step % kStages * (TileA::kElements + TileB::kElements);
    };
    const auto tile_b = [&](int step) { return tile_a(step) + TileA::kElements; };
    const auto load = [&](int step) {
      if (step < steps) {
        const int64_t depth = depth0 + static_cast<int64_t>(step) * kDepth;
        TileA::template load<kThreads>(tile_a(step), a, p.a.row, p.a.column, row0, p.m, depth,
                                       depth1);
        TileB::template load<kThreads>(tile_b(step), b, p.b.column, p.b.row, column0, p.n, depth,
                                       depth1);
      }
      ptx::cp_async_commit();  // an empty group at the end keeps the count
    };
    float sums[S::kRowBlocks][S::kColBlocks][4] = {};
    for (int step = 0; step < kStages - 1; ++step) load(step);
    for (int step = 0; step < steps; ++step) {
      ptx::cp_async_wait<kStages - 2>();
      __syncthreads();
      load(step + kStages - 1);
#pragma unroll
      for (int depth = 0; depth < kDepth; depth += Format::kStep) {
        uint32_t left[S::kRowBlocks][4], right[S::kColBlocks][2];
#pragma unroll
        for (int i = 0; i < S::kRowBlocks; ++i) {
          TileA::left(left[i], tile_a(step), warp_row + 16 * i, depth);
        }
#pragma unroll
        for (int j = 0; j < S::kColBlocks; j += 2) {
          TileB::right(right[j], right[j + 1], tile_b(step), warp_col + 8 * j, depth);
        }
#pragma unroll
        for (int i = 0; i < S::kRowBlocks; ++i) {
#pragma unroll
          for (int j = 0; j < S::kColBlocks; ++j) {
            Format::multiply(sums[i][j], left[i], right[j]);
          }
        }
      }
    }
    ptx::cp_async_wait<0>();
    __syncthreads();  // the next round's first copies overwrite stages that were
                      // just read
    const GemmArguments::Output to = p.output(batch);
    // A warp's rows are a group of the column sums.
    const int64_t group = (batch * tiles(p.m, kTile) + tile.row) * 2 + warp % 2;
#pragma unroll
    for (int j = 0; j < S::kColBlocks; ++j) {
      float column_sums[2] = {};
#pragma unroll
      for (int i = 0; i < S::kRowBlocks; ++i) {
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
      if constexpr (Format::kSumsColumns) {
        if (partials) {
          put_column_sums(partials, p, group, column0 + warp_col + 8 * j, column_sums);
        }
      }
    }
  }
}

/// Large tiles fill the device.
inline bool takes_large_tiles(const GemmArguments& p) {
  return p.batches * tiles(p.m, 128) * tiles(p.n, 128) >= kTargetBlocks;
}

template <class Format, int kTile, class TileA, class TileB>
void run(const GemmProblem& problem, const GemmArguments& p) {
  constexpr size_t kSharedBytes = size_t{Format::kStages} * (TileA::kElements + TileB::kElements) *
                                  sizeof(typename Format::Element);
  const unsigned rows = tiles(p.m, kTile), columns = tiles(p.n, kTile);
  const KSplit split = KSplit::choose(p.batches * rows * columns, p.k, Format::kStageDepth);
  const Remainder rest(problem, p, split, Format::kSumsColumns ? p.batches * rows * 2 : 0);
  const dim3 grid = tile_grid(p, kTile, kTile, p.batches * split.parts);
  WEFT_LAUNCH((gemm_mma_kernel<Format, kTile, TileA, TileB>), grid, Shape<kTile>::kThreads,
              kSharedBytes, current_stream_handle(problem.device()), p, split, rest.workspace,
              rest.partials);
  rest.finish(problem, p);
}

}  // namespace weft::kernels::mma_tiles
