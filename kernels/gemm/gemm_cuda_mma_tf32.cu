// Rung 4 for f32 operands that TF32 may stand for: mma.sync on their leading 10 bits of mantissa,
// in the pipeline of gemm_mma.cuh.
//
// Unlike gemm_cuda_mma.cu's operands, these get to the fragments element by element: ldmatrix moves
// 16-bit elements and cannot transpose 32-bit ones. Lines are padded instead of permuted: lane 4 g
// + q meets bank 20 g + q where lines run along K (20 floats), 8 q + g where they run along M or N
// (kSize + 8 floats), modulo 32 all different. Operands without a dense dimension, or whose lines
// do not begin at multiples of 16 bytes, are copied element by element.
//
// Tf32::kTruncate gives the tensor core the operands as they are: it ignores the low 13 bits.
// Tf32::kNearest rounds them away first, as cvt.rna does.
#include "kernels/gemm/gemm_mma.cuh"
#include "kernels/gemm/gemm_tma.h"

namespace weft::kernels {
namespace {

using namespace ptx;

constexpr int kDepth = 16;

/// A tile of kSize rows of A (columns of B) by kDepth, one stage of it. Its lines run along K, or
/// across it; 16-byte copies fit them, or they have any two strides and count as lines along K.
template <bool kFitsCopies, bool kAlongDepth, int kSize, bool kNearest>
struct Tile {
  static_assert(kFitsCopies || kAlongDepth);
  static constexpr int kLength = kAlongDepth ? kDepth : kSize,
                       kCount = kAlongDepth ? kSize : kDepth;
  static constexpr int kPitch = kLength + (kAlongDepth ? 4 : 8);
  static constexpr int kElements = kCount * kPitch;
  static constexpr int kVector = kFitsCopies ? 4 : 1;

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

  /// The fragment of 16 rows of A, of two blocks of 8 columns of B.
  static __device__ __forceinline__ void left(uint32_t (&r)[4], const float* tile, int at,
                                              int depth) {
#pragma unroll
    for (int i = 0; i < 4; ++i) r[i] = element(tile, at + 8 * (i % 2), depth + 4 * (i / 2));
  }
  static __device__ __forceinline__ void right(uint32_t (&first)[2], uint32_t (&second)[2],
                                               const float* tile, int at, int depth) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      first[i] = element(tile, at, depth + 4 * i);
      second[i] = element(tile, at + 8, depth + 4 * i);
    }
  }

 private:
  /// Lane 4 g + q has element (at + g, depth + q) of the tile.
  static __device__ __forceinline__ uint32_t element(const float* tile, int at, int depth) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int row = at + lane / 4, k = depth + lane % 4;
    const float x = tile[kAlongDepth ? row * kPitch + k : k * kPitch + row];
    return kNearest ? cvt_rna_tf32(x) : __float_as_uint(x);
  }
};

struct Tf32Format {
  using Element = float;
  static constexpr int kStageDepth = kDepth, kStep = 8;
  static constexpr int kStages = 4;
  static constexpr bool kSumsColumns = false;

  static __device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4],
                                                  const uint32_t (&b)[2]) {
    mma_m16n8k8_tf32(d, a, b);
  }
};

}  // namespace

void gemm_cuda_mma_tf32(const GemmProblem& problem) {
  if (finish_if_empty(problem)) return;
  const GemmArguments p(problem);
  // Copies go along the lines that fit.
  const bool fits = fits_16_byte_copies(problem.a) && fits_16_byte_copies(problem.b);
  with_flags(
      [&](auto is_large, auto is_nearest, auto fits, auto a_depth, auto b_depth) {
        constexpr int kTile = is_large() ? 128 : 64;
        constexpr bool kNearest = is_nearest(), kFits = fits();
        mma_tiles::run<Tf32Format, kTile, Tile<kFits, !kFits || a_depth(), kTile, kNearest>,
                       Tile<kFits, !kFits || b_depth(), kTile, kNearest>>(problem, p);
      },
      mma_tiles::takes_large_tiles(p), problem.numerics.tf32 == Tf32::kNearest, fits,
      fits ? !has_transposed_lines(problem.a) : p.a.column == 1 || p.k == 1,
      fits ? has_transposed_lines(problem.b) : p.b.row == 1 || p.k == 1);
}

}  // namespace weft::kernels
