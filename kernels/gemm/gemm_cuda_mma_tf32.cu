// Rung 4 for f32 operands that TF32 may stand for: mma.sync on their leading 10 bits of mantissa.
//
// The pipeline is that of gemm_cuda_mma.cu: 64 x 64 or 128 x 128 tiles of C, a ring of cp.async
// stages. What differs is the way from shared memory to the fragments. ldmatrix moves 16-bit
// elements and cannot transpose 32-bit ones, so that lanes load their own elements, and lines are
// padded instead of permuted: lane 4 g + q meets bank 20 g + q where lines run along K (20 floats),
// 8 q + g where they run along M or N (kSize + 8 floats), modulo 32 all different. Operands without
// a dense dimension, or whose lines do not begin at multiples of 16 bytes, are copied element by
// element.
//
// Tf32::truncate gives the tensor core the operands as they are: it ignores the low 13 bits.
// Tf32::nearest rounds them away first, as cvt.rna does.
#include "kernels/device/copy_async.h"
#include "kernels/device/mma.h"
#include "kernels/gemm/gemm_bias_gradient.cuh"
#include "kernels/gemm/gemm_cuda_split.cuh"
#include "kernels/gemm/gemm_tma.h"

namespace weft::kernels {
namespace {

using namespace ptx;

constexpr int kDepth = 16, kStages = 4;

/// How an operand lies in global memory: lines along K or across it that 16-byte copies fit, or any
/// two strides.
enum class Lines { kAlongDepth, kAcross, kAny };

/// A tile of kSize rows of A (columns of B) by kDepth, one stage of it.
template <Lines kLines, int kSize>
struct Tile {
  static constexpr bool kAlongDepth = kLines != Lines::kAcross;
  static constexpr int kLength = kAlongDepth ? kDepth : kSize,
                       kCount = kAlongDepth ? kSize : kDepth;
  static constexpr int kPitch = kLength + (kAlongDepth ? 4 : 8);
  static constexpr int kFloats = kCount * kPitch;
  static constexpr int kVector = kLines == Lines::kAny ? 1 : 4;

  /// Starts the copies of the part of a matrix that begins at (at, depth); what lies outside is 0.
  /// Strides in elements: between rows of A (columns of B), and along K.
  template <int kThreads>
  static __device__ __forceinline__ void load(float* tile, const float* from, int64_t at_stride,
                                              int64_t depth_stride, int64_t at, int64_t n_at,
                                              int64_t depth, int64_t n_depth) {
    constexpr int kPerLine = kLength / kVector;
    static_assert(kCount * kPerLine % kThreads == 0);
#pragma unroll 4
    for (int i = 0; i < kCount * kPerLine / kThreads; ++i) {
      const int e = static_cast<int>(threadIdx.x) + i * kThreads;
      const int line = e / kPerLine, within = e % kPerLine * kVector;
      const int64_t row = at + (kAlongDepth ? line : within);
      const int64_t k = depth + (kAlongDepth ? within : line);
      const int64_t left = kAlongDepth ? n_depth - k : n_at - row;
      const bool is_inside = row < n_at && k < n_depth;
      const int64_t inside = is_inside ? min(int64_t{kVector}, left) : int64_t{0};
      cp_async<4 * kVector>(tile + line * kPitch + within,
                            is_inside ? from + row * at_stride + k * depth_stride : from,
                            static_cast<int>(inside) * 4);
    }
  }

  static __device__ __forceinline__ float element(const float* tile, int at, int depth) {
    return tile[kAlongDepth ? at * kPitch + depth : depth * kPitch + at];
  }
};

template <bool kNearest>
__device__ __forceinline__ uint32_t operand(float x) {
  return kNearest ? cvt_rna_tf32(x) : __float_as_uint(x);
}

template <int kTile>
struct Shape {
  static constexpr int kWarpRows = kTile / 2, kWarpCols = 32;
  static constexpr int kWarps = 2 * (kTile / kWarpCols), kThreads = kWarps * 32;
};

template <int kTile, Lines kA, Lines kB, bool kNearest>
__global__ void __launch_bounds__(Shape<kTile>::kThreads)
    gemm_mma_tf32_kernel(const __grid_constant__ GemmArguments p, KSplit split,
                         KSplitWorkspace workspace) {
  using S = Shape<kTile>;
  using TileA = Tile<kA, kTile>;
  using TileB = Tile<kB, kTile>;
  constexpr int kThreads = S::kThreads;
  constexpr int kRowBlocks = S::kWarpRows / 16, kColBlocks = S::kWarpCols / 8;
  WEFT_DYNAMIC_SHARED(float, stages);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / 4, quad = lane % 4;
  const int warp_row = warp % 2 * S::kWarpRows, warp_col = warp / 2 * S::kWarpCols;
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t column0 = static_cast<int64_t>(blockIdx.x) * kTile;
  for (int64_t z = blockIdx.z; z < p.batches * split.parts; z += gridDim.z) {
    const int64_t batch = z / split.parts;
    const int part = static_cast<int>(z % split.parts);
    const int64_t depth0 = part * split.depth, depth1 = min(p.k, depth0 + split.depth);
    const auto* a = static_cast<const float*>(p.a.elements.data) + p.base(p.a, batch);
    const auto* b = static_cast<const float*>(p.b.elements.data) + p.base(p.b, batch);
    const int steps = static_cast<int>((depth1 - depth0 + kDepth - 1) / kDepth);
    const auto tile_a = [&](int step) {
      return stages + step % kStages * (TileA::kFloats + TileB::kFloats);
    };
    const auto tile_b = [&](int step) { return tile_a(step) + TileA::kFloats; };
    const auto load = [&](int step) {
      if (step < steps) {
        const int64_t depth = depth0 + static_cast<int64_t>(step) * kDepth;
        TileA::template load<kThreads>(tile_a(step), a, p.a.row, p.a.column, row0, p.m, depth,
                                       depth1);
        TileB::template load<kThreads>(tile_b(step), b, p.b.column, p.b.row, column0, p.n, depth,
                                       depth1);
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
      for (int depth = 0; depth < kDepth; depth += 8) {
        uint32_t fragment_a[kRowBlocks][4], fragment_b[kColBlocks][2];
#pragma unroll
        for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            fragment_a[i][r] = operand<kNearest>(TileA::element(
                tile_a(step), warp_row + 16 * i + group + 8 * (r % 2), depth + quad + 4 * (r / 2)));
          }
        }
#pragma unroll
        for (int j = 0; j < kColBlocks; ++j) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            fragment_b[j][r] = operand<kNearest>(
                TileB::element(tile_b(step), warp_col + 8 * j + group, depth + quad + 4 * r));
          }
        }
#pragma unroll
        for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
          for (int j = 0; j < kColBlocks; ++j) {
            mma_m16n8k8_tf32(sums[i][j], fragment_a[i], fragment_b[j]);
          }
        }
      }
    }
    cp_async_wait<0>();
    __syncthreads();  // the next round's first copies overwrite stages that were just read
    const GemmArguments::Output to = p.output(batch);
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < kColBlocks; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int64_t row = row0 + warp_row + 16 * i + group + 8 * (e / 2);
          const int64_t column = column0 + warp_col + 8 * j + 2 * quad + e % 2;
          if (row >= p.m || column >= p.n) continue;
          if (split.parts > 1) {
            *workspace.at(p, split.parts, batch, part, row, column) = sums[i][j][e];
          } else {
            p.finish(to, row, column, sums[i][j][e]);
          }
        }
      }
    }
  }
}

template <int kTile, Lines kA, Lines kB>
void launch(const GemmProblem& problem, const GemmArguments& p) {
  using S = Shape<kTile>;
  constexpr size_t kSharedBytes =
      size_t{kStages} * (Tile<kA, kTile>::kFloats + Tile<kB, kTile>::kFloats) * sizeof(float);
  const int64_t output_tiles = p.batches * tiles(p.m, kTile) * tiles(p.n, kTile);
  const KSplit split = KSplit::choose(output_tiles, p.k, kDepth);
  const runtime::StreamHandle stream = current_stream_handle(problem.device());
  const Tensor sums = KSplitWorkspace::allocate(problem, p, split);
  const KSplitWorkspace workspace(sums);
  const dim3 grid(tiles(p.n, kTile), tiles(p.m, kTile), grid_batches(p.batches * split.parts));
  if (problem.numerics.tf32 == Tf32::nearest) {
    WEFT_LAUNCH((gemm_mma_tf32_kernel<kTile, kA, kB, true>), grid, S::kThreads, kSharedBytes,
                stream, p, split, workspace);
  } else {
    WEFT_LAUNCH((gemm_mma_tf32_kernel<kTile, kA, kB, false>), grid, S::kThreads, kSharedBytes,
                stream, p, split, workspace);
  }
  if (split.parts > 1) join_parts(p, workspace, split.parts, stream);
}

template <int kTile>
void run_tile(const GemmProblem& problem, const GemmArguments& p) {
  constexpr Lines kDepthwise = Lines::kAlongDepth, kAcross = Lines::kAcross, kAny = Lines::kAny;
  const bool a_depth = p.a.column == 1 || p.k == 1, b_depth = p.b.row == 1 || p.k == 1;
  if (!fits_16_byte_copies(problem.a) || !fits_16_byte_copies(problem.b)) {
    launch<kTile, kAny, kAny>(problem, p);
  } else if (a_depth && b_depth) {
    launch<kTile, kDepthwise, kDepthwise>(problem, p);
  } else if (a_depth) {
    launch<kTile, kDepthwise, kAcross>(problem, p);
  } else if (b_depth) {
    launch<kTile, kAcross, kDepthwise>(problem, p);
  } else {
    launch<kTile, kAcross, kAcross>(problem, p);
  }
}

}  // namespace

void gemm_cuda_mma_tf32(const GemmProblem& problem) {
  if (gemm_is_empty(problem)) return;
  const GemmArguments p(problem);
  const bool is_large = p.batches * tiles(p.m, 128) * tiles(p.n, 128) >= kTargetBlocks;
  is_large ? run_tile<128>(problem, p) : run_tile<64>(problem, p);
  sum_columns<float>(problem, p);
}

}  // namespace weft::kernels
