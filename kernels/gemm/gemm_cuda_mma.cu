// Rung 4, tensor cores: mma.sync on tiles that cp.async brings in a ring of stages (gemm_mma.cuh).
//
// Tiles lie in shared memory as in global memory, 16 bytes to a chunk, along K or along M (N);
// chunks are permuted within the banks' 128 bytes so that the 8 rows that ldmatrix reads together
// meet all banks; the transposing ldmatrix turns the second layout. Operands along neither
// dimension take another rung.
//
// Lines that do not begin at multiples of 16 bytes, as rows of 197 elements, come two elements at a
// time where they lie at multiples of 4 bytes, else one by one through registers: four or eight
// loads in the place of one, beside as many products of tensor cores.
#include "kernels/gemm/gemm_mma.cuh"
#include "kernels/gemm/gemm_tma.h"

namespace weft::kernels {
namespace {

using namespace ptx;

constexpr int kDepth = 32;
constexpr int kChunk = 8;  // elements in 16 bytes

/// A chunk whose lines begin at any element: elements [0, inside) of `from`, then zeros.
__device__ __forceinline__ void copy_chunk(uint16_t* to, const uint16_t* from, int inside) {
  if (reinterpret_cast<uintptr_t>(from) % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kChunk; i += 2) {
      const int here = max(0, min(2, inside - i));
      cp_async<4>(to + i, here > 0 ? from + i : from, here * 2);
    }
    return;
  }
  Pack<uint32_t, kChunk / 2> words;
#pragma unroll
  for (int i = 0; i < kChunk / 2; ++i) {
    const uint32_t low = 2 * i < inside ? from[2 * i] : 0;
    const uint32_t high = 2 * i + 1 < inside ? from[2 * i + 1] : 0;
    words.values[i] = low | high << 16;
  }
  *reinterpret_cast<Pack<uint32_t, kChunk / 2>*>(to) = words;
}

/// A tile of kSize rows of A (columns of B) by kDepth, one stage of it. kFitsCopies: its lines
/// begin at multiples of 16 bytes.
template <bool kFitsCopies, bool kAlongDepth, int kSize>
struct Tile {
  static constexpr int kChunksPerLine = (kAlongDepth ? kDepth : kSize) / kChunk;
  static constexpr int kLines = kAlongDepth ? kSize : kDepth;
  static constexpr int kElements = kSize * kDepth;

  /// Where chunk `chunk` of a line lies. Lines of 64 bytes: two share 128 bytes.
  static __device__ __forceinline__ int offset(int line, int chunk) {
    const int swizzle = kAlongDepth ? line / 2 % 4 : line % 8;
    return (line * kChunksPerLine + (chunk ^ swizzle)) * kChunk;
  }

  /// Starts the copies of the part of a matrix that begins at (at, depth); what lies outside is 0.
  /// Strides in elements: between rows of A (columns of B), and along K; one of them is 1.
  template <int kThreads>
  static __device__ __forceinline__ void load(uint16_t* tile, const uint16_t* from,
                                              int64_t at_stride, int64_t depth_stride, int64_t at,
                                              int64_t n_at, int64_t depth, int64_t n_depth) {
    static_assert(kLines * kChunksPerLine % kThreads == 0);
    const int64_t line_stride = kAlongDepth ? at_stride : depth_stride;
#pragma unroll
    for (int i = 0; i < kLines * kChunksPerLine / kThreads; ++i) {
      const int e = static_cast<int>(threadIdx.x) + i * kThreads;
      const int line = e / kChunksPerLine, chunk = e % kChunksPerLine;
      const int64_t line_at = (kAlongDepth ? at : depth) + line;
      const int64_t first = (kAlongDepth ? depth : at) + chunk * kChunk;
      const int64_t lines = kAlongDepth ? n_at : n_depth, length = kAlongDepth ? n_depth : n_at;
      const int64_t inside =
          line_at < lines ? max(int64_t{0}, min(int64_t{kChunk}, length - first)) : int64_t{0};
      const uint16_t* const source = inside > 0 ? from + line_at * line_stride + first : from;
      if constexpr (kFitsCopies) {
        cp_async<16>(tile + offset(line, chunk), source, static_cast<int>(inside) * 2);
      } else {
        copy_chunk(tile + offset(line, chunk), source, static_cast<int>(inside));
      }
    }
  }

  /// The fragment of 16 rows of A, of two blocks of 8 columns of B.
  static __device__ __forceinline__ void left(uint32_t (&r)[4], const uint16_t* tile, int at,
                                              int depth) {
    fragment<false>(r, tile, at, depth);
  }
  static __device__ __forceinline__ void right(uint32_t (&first)[2], uint32_t (&second)[2],
                                               const uint16_t* tile, int at, int depth) {
    uint32_t two[4];
    fragment<true>(two, tile, at, depth);
    first[0] = two[0];
    first[1] = two[1];
    second[0] = two[2];
    second[1] = two[3];
  }

 private:
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
struct Sixteen {
  using Element = uint16_t;
  static constexpr int kStageDepth = kDepth, kStep = 16;  // of a stage, of a product
  static constexpr int kStages = 3;
  static constexpr bool kSumsColumns = true;  // in the kernel, for the gradient of a bias

  static __device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4],
                                                  const uint32_t (&b)[2]) {
    if constexpr (kIsBf16) {
      mma_m16n8k16_bf16(d, a, b);
    } else {
      mma_m16n8k16_f16(d, a, b);
    }
  }
};

}  // namespace

void gemm_cuda_mma(const GemmProblem& problem) {
  if (finish_if_empty(problem)) return;
  const GemmArguments p(problem);
  // Copies go along the lines that fit.
  const bool fits = fits_16_byte_copies(problem.a) && fits_16_byte_copies(problem.b);
  with_flags(
      [&](auto is_large, auto is_bf16, auto fits_copies, auto a_depth, auto b_depth) {
        constexpr int kTile = is_large() ? 128 : 64;
        mma_tiles::run<Sixteen<is_bf16()>, kTile, Tile<fits_copies(), a_depth(), kTile>,
                       Tile<fits_copies(), b_depth(), kTile>>(problem, p);
      },
      mma_tiles::takes_large_tiles(p), problem.dtype() == DType::bf16, fits,
      fits ? !has_transposed_lines(problem.a) : p.a.column == 1 || p.k == 1,
      fits ? has_transposed_lines(problem.b) : p.b.row == 1 || p.k == 1);
}

}  // namespace weft::kernels
