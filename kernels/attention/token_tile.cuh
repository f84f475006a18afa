// Tokens of a head as tensor cores take them: tiles of their rows in shared memory, the fragments
// that mma.sync takes from them, and their products.
//
// A tile is a stretch of tokens of one head, kWidth elements to a row: columns beyond the head's
// width and rows beyond its last token are zeros. cp.async brings it in chunks of 16 bytes,
// permuted within the banks' 128 bytes so that the 8 rows that ldmatrix reads together meet all
// banks.
//
// Fragments (kernels/device/mma.h): the scores of 16 rows by 8 columns lie in a lane as
// s[2 r + c] = (row g + 8 r, column 2 q + c), lane = 4 g + q. Scores never leave the registers. Two
// neighbouring blocks of 16-bit ones, rounded and packed, are the left operand of the next product.
//
// TF32: elements are f32, a chunk holds 4 of them, a product is 8 deep. ldmatrix moves pairs of
// 16-bit elements: of a tile of f32 its untransposed form gives lane 4 g + q row g, column q, which
// is what the fragments of tf32 ask for. Transposed ones are read element by element. There a left
// operand wants columns q and q + 4 of the scores where the lane has 2 q and 2 q + 1; the order of
// a sum's terms is free, so that depth k of such a product stands for token 2 (k % 4) + k / 4.
// Rows of f32 are padded by a chunk instead of permuted: ldmatrix meets all banks there, too, an
// element (token 2 q, column g) lies in bank 8 q + g, and its address is a sum, which costs no
// registers in an unrolled loop. Operands are given as they are: tensor cores ignore the low 13
// bits.
#pragma once

#include <cmath>

#include "kernels/attention/attention_cuda.cuh"
#include "kernels/attention/attention_heads.h"
#include "kernels/attention/attention_short.h"
#include "kernels/device/copy_async.h"
#include "kernels/device/mma.h"

namespace weft::kernels {

/// What the tensor cores multiply; the elements of tf32 are f32.
enum class MmaOperand { kF16, kBf16, kTf32 };

template <MmaOperand kOperand>
using MmaElement = std::conditional_t<kOperand == MmaOperand::kTf32, float, uint16_t>;

/// The depth of one product: two chunks of 16 bytes.
template <MmaOperand kOperand>
inline constexpr int kMmaDepth = kOperand == MmaOperand::kTf32 ? 8 : 16;

/// One of the pairs of batches and heads.
struct Pair {
  int index, b, h;

  __device__ __forceinline__ Pair(int index, int heads)
      : index(index), b(index / heads), h(index % heads) {}
  __device__ __forceinline__ Pair(int b, int h, int heads) : index(b * heads + h), b(b), h(h) {}
};

/// [B, H, T, D] in global memory, dense along D.
struct HeadRows : HeadStrides {
  void* data = nullptr;
  bool is_aligned = false;  // every row begins at a multiple of 16 bytes

  HeadRows() = default;
  explicit HeadRows(const Tensor& t)
      : HeadStrides(t),
        data(t.defined() ? t.raw() : nullptr),
        is_aligned(t.defined() && has_aligned_rows(t)) {}
  template <class Element>
  __device__ Element* of(const Pair& pair) const {
    return static_cast<Element*>(data) + pair.b * batch + pair.h * head;
  }
};

/// d0 and d1 += a times the two right operands of b.
template <MmaOperand kOperand>
__device__ __forceinline__ void multiply_pair(float (&d0)[4], float (&d1)[4],
                                              const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
  if constexpr (kOperand == MmaOperand::kTf32) {
    ptx::mma_m16n8k8_tf32(d0, a, first);
    ptx::mma_m16n8k8_tf32(d1, a, second);
  } else if constexpr (kOperand == MmaOperand::kBf16) {
    ptx::mma_m16n8k16_bf16(d0, a, first);
    ptx::mma_m16n8k16_bf16(d1, a, second);
  } else {
    ptx::mma_m16n8k16_f16(d0, a, first);
    ptx::mma_m16n8k16_f16(d1, a, second);
  }
}

/// Two numbers as 16-bit elements, the first in the low half.
template <MmaOperand kOperand>
__device__ __forceinline__ uint32_t pack_pair(float first, float second) {
  static_assert(kOperand != MmaOperand::kTf32);
  return kOperand == MmaOperand::kBf16 ? ptx::cvt_rn_bf16x2(first, second)
                                       : ptx::cvt_rn_f16x2(first, second);
}

/// Writes two neighbouring elements of a tile.
template <MmaOperand kOperand>
__device__ __forceinline__ void store_pair(MmaElement<kOperand>* to, float first, float second) {
  if constexpr (kOperand == MmaOperand::kTf32) {
    *reinterpret_cast<Pack<float, 2>*>(to) = {first, second};
  } else {
    *reinterpret_cast<uint32_t*>(to) = pack_pair<kOperand>(first, second);
  }
}

/// Columns kMmaDepth step.. of blocks of scores as a left operand, whose depth they are.
template <MmaOperand kOperand, int kBlocks>
__device__ __forceinline__ void pack_scores(uint32_t (&a)[4], const float (&s)[kBlocks][4],
                                            int step) {
  if constexpr (kOperand == MmaOperand::kTf32) {
    a[0] = __float_as_uint(s[step][0]);
    a[1] = __float_as_uint(s[step][2]);
    a[2] = __float_as_uint(s[step][1]);
    a[3] = __float_as_uint(s[step][3]);
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      a[2 * i] = pack_pair<kOperand>(s[2 * step + i][0], s[2 * step + i][1]);
      a[2 * i + 1] = pack_pair<kOperand>(s[2 * step + i][2], s[2 * step + i][3]);
    }
  }
}

/// Tokens of one head in shared memory, kWidth elements to a row.
template <int kWidth, MmaOperand kOperand>
struct TokenTile {
  using Element = MmaElement<kOperand>;
  static constexpr int kPerChunk = 16 / sizeof(Element);
  static constexpr int kChunks = kWidth / kPerChunk;
  static constexpr bool kIsWide = sizeof(Element) == 4;
  static_assert(kChunks == 4 || kChunks % 8 == 0);
  static constexpr int kDepth = kMmaDepth<kOperand>;
  static constexpr int kPitch = kIsWide ? padded_pitch(kWidth) : kWidth;

  static constexpr int elements(int tokens) { return tokens * kPitch; }

  /// Where chunk `chunk` of a row begins. Rows of 64 bytes: two share 128 bytes.
  static __device__ __forceinline__ int offset(int row, int chunk) {
    if constexpr (kIsWide) return row * kPitch + chunk * kPerChunk;
    const int swizzle = kChunks == 4 ? row / 2 % 4 : row % 8;
    return (row * kChunks + (chunk ^ swizzle)) * kPerChunk;
  }
  static __device__ __forceinline__ int place(int row, int column) {
    return offset(row, column / kPerChunk) + column % kPerChunk;
  }

  /// Starts the copies of `rows` tokens from `first` on, by `threads` threads.
  static __device__ __forceinline__ void load(Element* tile, int rows, const Element* from,
                                              int64_t stride, int first, int tokens, int width,
                                              int threads) {
#pragma unroll 1  // addresses kept for several rounds would cost registers
    for (int e = static_cast<int>(threadIdx.x); e < rows * kChunks; e += threads) {
      const int row = e / kChunks, chunk = e % kChunks, token = first + row;
      const int column = chunk * kPerChunk;
      const int inside = token < tokens ? max(0, min(kPerChunk, width - column)) : 0;
      ptx::cp_async<16>(tile + offset(row, chunk),
                        inside > 0 ? from + token * stride + column : from,
                        inside * static_cast<int>(sizeof(Element)));
    }
  }

  /// Tokens row.. as the 16 rows of a left operand, columns column.. its depth.
  static __device__ __forceinline__ void left(uint32_t (&r)[4], const Element* tile, int row,
                                              int column) {
    ptx::ldmatrix_x4(r, tile + lane_offset(row, column, true));
  }
  /// The same of the transpose: columns column.. are its rows, tokens row.. its depth.
  static __device__ __forceinline__ void left_transposed(uint32_t (&r)[4], const Element* tile,
                                                         int row, int column) {
    transposed<false>(r, tile, row, column);
  }
  /// Two right operands: tokens row.. and row + 8.. as their 8 columns, columns column.. as their
  /// depth.
  static __device__ __forceinline__ void right_transposed(uint32_t (&r)[4], const Element* tile,
                                                          int row, int column) {
    ptx::ldmatrix_x4(r, tile + lane_offset(row, column, false));
  }
  /// Two right operands: columns column.. and column + 8.. as their 8 columns, tokens row.. as
  /// their depth.
  static __device__ __forceinline__ void right(uint32_t (&r)[4], const Element* tile, int row,
                                               int column) {
    transposed<true>(r, tile, row, column);
  }

  /// products += 16 kRows tokens, rows row.. of a tile, times 8 kBlocks tokens, rows column.. of
  /// another, of which columns depth.. count.
  template <int kRows, int kBlocks>
  static __device__ __forceinline__ void multiply(float (&products)[kRows][kBlocks][4],
                                                  const Element* rows, int row,
                                                  const Element* columns, int column, int depth) {
    uint32_t a[kRows][4];
#pragma unroll
    for (int i = 0; i < kRows; ++i) left(a[i], rows, row + 16 * i, depth);
#pragma unroll
    for (int j = 0; j < kBlocks; j += 2) {
      uint32_t b[4];
      right_transposed(b, columns, column + 8 * j, depth);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        multiply_pair<kOperand>(products[i][j], products[i][j + 1], a[i], b);
      }
    }
  }

  /// sums += weights, 16 kRows rows by 8 kBlocks tokens, times those tokens, rows token.. of
  /// `tile`.
  template <int kRows, int kBlocks>
  static __device__ __forceinline__ void accumulate(float (&sums)[kRows][kWidth / 8][4],
                                                    const float (&weights)[kRows][kBlocks][4],
                                                    const Element* tile, int token) {
#pragma unroll
    for (int k = 0; k < 8 * kBlocks / kDepth; ++k) {
      uint32_t a[kRows][4];
#pragma unroll
      for (int i = 0; i < kRows; ++i) pack_scores<kOperand>(a[i], weights[i], k);
#pragma unroll
      for (int c = 0; c < kWidth / 8; c += 2) {
        uint32_t b[4];
        right(b, tile, token + kDepth * k, 8 * c);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          multiply_pair<kOperand>(sums[i][c], sums[i][c + 1], a[i], b);
        }
      }
    }
  }

  /// Writes a warp's 16 rows by 8 kBlocks columns from `column` on to tokens first.. of a head, row
  /// g times factor0 and row g + 8 times factor1, by way of rows `staging`.. of a tile that no
  /// other warp uses: whole chunks of 16 bytes where the rows allow.
  template <int kBlocks>
  static __device__ __forceinline__ void store(const float (&sums)[kBlocks][4], float factor0,
                                               float factor1, Element* tile, int staging,
                                               int column, Element* to, const HeadRows& layout,
                                               int first, int tokens, int width) {
    constexpr int kChunks = 8 * kBlocks / kPerChunk;
    const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, q = lane % 4;
    __syncwarp();  // all lanes have read what the rows held
#pragma unroll
    for (int c = 0; c < kBlocks; ++c) {
      const int at = column + 8 * c + 2 * q;
      store_pair<kOperand>(tile + place(staging + g, at), sums[c][0] * factor0,
                           sums[c][1] * factor0);
      store_pair<kOperand>(tile + place(staging + g + 8, at), sums[c][2] * factor1,
                           sums[c][3] * factor1);
    }
    __syncwarp();
#pragma unroll 1
    for (int e = lane; e < 16 * kChunks; e += kWarp) {
      const int row = e / kChunks, chunk = column / kPerChunk + e % kChunks;
      const int inside = min(kPerChunk, width - chunk * kPerChunk);
      if (first + row >= tokens || inside <= 0) continue;
      using Chunk = Pack<Element, kPerChunk>;
      const Chunk values = *reinterpret_cast<const Chunk*>(tile + offset(staging + row, chunk));
      Element* const at = to + (first + row) * layout.token + chunk * kPerChunk;
      if (layout.is_aligned && inside == kPerChunk) {
        *reinterpret_cast<Chunk*>(at) = values;
      } else {
#pragma unroll
        for (int i = 0; i < kPerChunk; ++i) {
          if (i < inside) at[i] = values.values[i];
        }
      }
    }
  }

 private:
  /// Fragments whose depth are tokens; registers 0 and 1 are neighbours along it, or along the
  /// columns.
  template <bool kRowsFirst>
  static __device__ __forceinline__ void transposed(uint32_t (&r)[4], const Element* tile, int row,
                                                    int column) {
    if constexpr (kIsWide) {
      const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, q = lane % 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int along_row = kRowsFirst ? i % 2 : i / 2, along_column = kRowsFirst ? i / 2 : i % 2;
        r[i] = __float_as_uint(tile[place(row + 2 * q + along_row, column + g + 8 * along_column)]);
      }
    } else {
      ptx::ldmatrix_x4_trans(r, tile + lane_offset(row, column, kRowsFirst));
    }
  }
  /// The chunk that this lane gives ldmatrix: matrices 0 and 1 are neighbours along the
  /// rows, or along the columns.
  static __device__ __forceinline__ int lane_offset(int row, int column, bool rows_first) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int low = lane / 8 % 2, high = lane / 16;
    return offset(row + lane % 8 + 8 * (rows_first ? low : high),
                  column / kPerChunk + (rows_first ? high : low));
  }
};

}  // namespace weft::kernels
