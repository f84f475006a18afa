// What the tensor-core kernels of attention share: where heads lie in memory, tiles of their rows
// in shared memory, the fragments that mma.sync takes from them, masks and dropout.
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
#include "kernels/device/approx.h"
#include "kernels/device/copy_async.h"
#include "kernels/device/mma.h"

namespace weft::kernels {

inline constexpr float kLog2E = 1.44269504088896341f, kLn2 = 0.693147180559945309f;

/// What the tensor cores multiply; the elements of tf32 are f32.
enum class MmaOperand { f16, bf16, tf32 };

template <MmaOperand kOperand>
using MmaElement = std::conditional_t<kOperand == MmaOperand::tf32, float, uint16_t>;

/// The depth of one product: two chunks of 16 bytes.
template <MmaOperand kOperand>
inline constexpr int kMmaDepth = kOperand == MmaOperand::tf32 ? 8 : 16;

/// [B, H, T, D] in global memory, dense along D.
struct HeadRows {
  void* data = nullptr;
  int64_t batch = 0, head = 0, token = 0;
  bool is_aligned = false;  // every row begins at a multiple of 16 bytes

  HeadRows() = default;
  explicit HeadRows(const Tensor& t) {
    if (!t.defined()) return;
    data = t.raw();
    batch = t.strides()[0];
    head = t.strides()[1];
    token = t.strides()[2];
    is_aligned = has_aligned_rows(t);
  }
  template <class Element>
  __device__ Element* of(int b, int h) const {
    return static_cast<Element*>(data) + b * batch + h * head;
  }
};

struct MmaAttention {
  HeadRows q, k, v, out, dout, dq, dk, dv;
  float* lse = nullptr;
  float* delta = nullptr;  // [B, H, Tq]: sum of dout * out along the head
  int heads = 0, queries = 0, keys = 0, width = 0;
  float scale = 1;
  bool causal = false;
  float dropout = 0;
  uint64_t seed = 0, stream = 0, offset = 0;

  explicit MmaAttention(const AttentionProblem& p)
      : q(p.q),
        k(p.k),
        v(p.v),
        out(p.out),
        dout(p.dout),
        dq(p.dq),
        dk(p.dk),
        dv(p.dv),
        lse(p.lse.data<float>()),
        heads(static_cast<int>(p.q.size(1))),
        queries(static_cast<int>(p.q.size(2))),
        keys(static_cast<int>(p.k.size(2))),
        width(static_cast<int>(p.q.size(3))),
        scale(static_cast<float>(p.scale)),
        causal(p.causal),
        dropout(static_cast<float>(p.dropout)),
        seed(p.seed),
        stream(p.stream),
        offset(p.offset) {}

  /// What a kept probability is multiplied by.
  __device__ __forceinline__ float kept_factor() const { return 1 / (1 - dropout); }
  /// The number of the score (query, key) of a pair among all.
  __device__ __forceinline__ uint64_t element(int pair, int query, int key) const {
    return (static_cast<uint64_t>(pair) * queries + query) * keys + key;
  }
  /// 1 where element n is kept, else 0.
  __device__ __forceinline__ uint32_t kept_one(uint64_t n) const {
    const auto words = philox4x32(seed, stream, offset + n / 4);
    return is_kept(philox_word(words, n % 4));
  }
  /// Bit 0: element n is kept; bit 1: element n + 1.
  __device__ __forceinline__ uint32_t kept_pair(uint64_t n) const {
    const auto words = philox4x32(seed, stream, offset + n / 4);
    const uint32_t place = n % 4, first = is_kept(philox_word(words, place));
    if (place == 3) return first | kept_one(n + 1) << 1;
    return first | is_kept(philox_word(words, place + 1)) << 1;
  }
  /// Bit 4 j + e: score e of block j of this lane is kept. Rows are queries from `query` on,
  /// columns keys; at most 8 blocks.
  template <int kBlocks>
  __device__ __forceinline__ uint32_t kept_scores(int pair, int query, int key) const {
    static_assert(kBlocks <= 8);
    const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, q = lane % 4;
    uint32_t kept = 0;
#pragma unroll 1
    for (int j = 0; j < 2 * kBlocks; ++j) {
      const uint64_t n = element(pair, query + g + 8 * (j % 2), key + 8 * (j / 2) + 2 * q);
      kept |= kept_pair(n) << 2 * j;
    }
    return kept;
  }
  /// The same of transposed scores: rows are keys, columns queries.
  template <int kBlocks>
  __device__ __forceinline__ uint32_t kept_transposed(int pair, int query, int key) const {
    static_assert(kBlocks <= 8);
    const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, q = lane % 4;
    uint32_t kept = 0;
#pragma unroll 1
    for (int j = 0; j < 4 * kBlocks; ++j) {
      const uint64_t n =
          element(pair, query + 8 * (j / 4) + 2 * q + j % 2, key + g + 8 * (j / 2 % 2));
      kept |= kept_one(n) << j;
    }
    return kept;
  }

 private:
  __device__ __forceinline__ uint32_t is_kept(uint32_t word) const {
    return uniform_from_bits(word) >= dropout ? 1 : 0;
  }
};

/// Tokens of one head in shared memory, kWidth elements to a row.
template <int kWidth, class Element>
struct TokenTile {
  static constexpr int kPerChunk = 16 / sizeof(Element);
  static constexpr int kChunks = kWidth / kPerChunk;
  static constexpr bool kIsWide = sizeof(Element) == 4;
  static_assert(kChunks == 4 || kChunks % 8 == 0);

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
    if constexpr (kIsWide) {
      const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, q = lane % 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        r[i] = __float_as_uint(tile[place(row + 2 * q + i / 2, column + g + 8 * (i % 2))]);
      }
    } else {
      ptx::ldmatrix_x4_trans(r, tile + lane_offset(row, column, false));
    }
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
    if constexpr (kIsWide) {
      const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, q = lane % 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        r[i] = __float_as_uint(tile[place(row + 2 * q + i % 2, column + g + 8 * (i / 2))]);
      }
    } else {
      ptx::ldmatrix_x4_trans(r, tile + lane_offset(row, column, true));
    }
  }

 private:
  /// The chunk that this lane gives ldmatrix: matrices 0 and 1 are neighbours along the
  /// rows, or along the columns.
  static __device__ __forceinline__ int lane_offset(int row, int column, bool rows_first) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int low = lane / 8 % 2, high = lane / 16;
    return offset(row + lane % 8 + 8 * (rows_first ? low : high),
                  column / kPerChunk + (rows_first ? high : low));
  }
};

/// d0 and d1 += a times the two right operands of b.
template <MmaOperand kOperand>
__device__ __forceinline__ void multiply_pair(float (&d0)[4], float (&d1)[4],
                                              const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
  if constexpr (kOperand == MmaOperand::tf32) {
    ptx::mma_m16n8k8_tf32(d0, a, first);
    ptx::mma_m16n8k8_tf32(d1, a, second);
  } else if constexpr (kOperand == MmaOperand::bf16) {
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
  static_assert(kOperand != MmaOperand::tf32);
  return kOperand == MmaOperand::bf16 ? ptx::cvt_rn_bf16x2(first, second)
                                      : ptx::cvt_rn_f16x2(first, second);
}

/// Writes two neighbouring elements of a tile.
template <MmaOperand kOperand>
__device__ __forceinline__ void store_pair(MmaElement<kOperand>* to, float first, float second) {
  if constexpr (kOperand == MmaOperand::tf32) {
    *reinterpret_cast<Pack<float, 2>*>(to) = {first, second};
  } else {
    *reinterpret_cast<uint32_t*>(to) = pack_pair<kOperand>(first, second);
  }
}

/// Columns kMmaDepth step.. of blocks of scores as a left operand, whose depth they are.
template <MmaOperand kOperand, int kBlocks>
__device__ __forceinline__ void pack_scores(uint32_t (&a)[4], const float (&s)[kBlocks][4],
                                            int step) {
  if constexpr (kOperand == MmaOperand::tf32) {
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

/// join of a row of scores over the 4 lanes that hold it.
template <class F>
__device__ __forceinline__ float quad_join(float x, F join) {
  x = join(x, __shfl_xor_sync(kAllLanes, x, 1));
  return join(x, __shfl_xor_sync(kAllLanes, x, 2));
}

/// A NaN is left to the sum of the row.
__device__ __forceinline__ float larger(float a, float b) { return std::fmax(a, b); }

/// Writes a warp's 16 rows by 8 kBlocks columns from `column` on to tokens first.. of a head, row g
/// times factor0 and row g + 8 times factor1, by way of rows `staging`.. of a tile that no other
/// warp uses: whole chunks of 16 bytes where the rows allow.
template <int kWidth, MmaOperand kOperand, int kBlocks>
__device__ __forceinline__ void store_rows(const float (&sums)[kBlocks][4], float factor0,
                                           float factor1, MmaElement<kOperand>* tile, int staging,
                                           int column, MmaElement<kOperand>* to,
                                           const HeadRows& layout, int first, int tokens,
                                           int width) {
  using Element = MmaElement<kOperand>;
  using Tile = TokenTile<kWidth, Element>;
  constexpr int kPerChunk = Tile::kPerChunk, kChunks = 8 * kBlocks / kPerChunk;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, q = lane % 4;
  __syncwarp();  // all lanes have read what the rows held
#pragma unroll
  for (int c = 0; c < kBlocks; ++c) {
    const int at = column + 8 * c + 2 * q;
    store_pair<kOperand>(tile + Tile::place(staging + g, at), sums[c][0] * factor0,
                         sums[c][1] * factor0);
    store_pair<kOperand>(tile + Tile::place(staging + g + 8, at), sums[c][2] * factor1,
                         sums[c][3] * factor1);
  }
  __syncwarp();
#pragma unroll 1
  for (int e = lane; e < 16 * kChunks; e += kWarp) {
    const int row = e / kChunks, chunk = column / kPerChunk + e % kChunks;
    const int inside = min(kPerChunk, width - chunk * kPerChunk);
    if (first + row >= tokens || inside <= 0) continue;
    using Chunk = Pack<Element, kPerChunk>;
    const Chunk values = *reinterpret_cast<const Chunk*>(tile + Tile::offset(staging + row, chunk));
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

/// sum(a * b) of the lane's elements 8 part .. 8 part + 8 of two rows, in f32.
template <MmaOperand kOperand>
__device__ __forceinline__ float dot_of_parts(const MmaElement<kOperand>* a,
                                              const MmaElement<kOperand>* b, int part, int width) {
  using T = std::conditional_t<kOperand == MmaOperand::tf32, float,
                               std::conditional_t<kOperand == MmaOperand::bf16, bf16, f16>>;
  float sum = 0;
  const int inside = min(8, width - part * 8);
  if (inside <= 0) return sum;
  float x[8] = {}, y[8] = {};
  if (inside == 8) {
    elements::load_as<T, 8>(a, part * 8, x);
    elements::load_as<T, 8>(b, part * 8, y);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i >= inside) continue;
      x[i] = elements::to_arithmetic<T, float>(reinterpret_cast<const T*>(a)[part * 8 + i]);
      y[i] = elements::to_arithmetic<T, float>(reinterpret_cast<const T*>(b)[part * 8 + i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = std::fma(x[i], y[i], sum);
  return sum;
}

/// What 16 kRows keys, rows row.. of their tiles, get from kColumns queries, columns of the
/// transposed scores: dv += dropout(P)^T dout, dk += dS^T q. Returns dS^T.
template <int kWidth, MmaOperand kOperand, bool kDropout, int kRows, int kColumns>
struct KeyGradients {
  using Element = MmaElement<kOperand>;
  using Tile = TokenTile<kWidth, Element>;
  static constexpr int kBlocks = kColumns / 8, kDepth = kMmaDepth<kOperand>;
  // Steps: for want of registers.
  static constexpr int kUnrolled = kWidth == 128 ? 1 : kWidth / 16;

  const MmaAttention& p;
  int pair;
  const Element *tile_k, *tile_v;
  int row, first_key;  // in the tiles, in the head
  float dk[kRows][kWidth / 8][4] = {}, dv[kRows][kWidth / 8][4] = {};
  float slopes[kRows][kBlocks][4];  // dS^T of the last columns

  __device__ __forceinline__ KeyGradients(const MmaAttention& p, int pair, const Element* tile_k,
                                          const Element* tile_v, int row, int first_key)
      : p(p), pair(pair), tile_k(tile_k), tile_v(tile_v), row(row), first_key(first_key) {}

  /// Under a causal mask no query of the columns sees a key of the rows.
  __device__ __forceinline__ bool is_hidden(int first_query) const {
    return p.causal && first_query + kColumns <= first_key;
  }

  /// Columns column.. of a stage's tiles, which are queries first_query.. of the head. lse and
  /// delta are the stage's.
  __device__ __forceinline__ void add(const Element* tile_q, const Element* tile_dout,
                                      const float* stage_lse, const float* stage_delta, int column,
                                      int first_query) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, q = lane % 4;
    float scores[kRows][kBlocks][4] = {};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) slopes[i][j][e] = 0;
      }
    }
#pragma unroll kUnrolled
    for (int d = 0; d < kWidth / kDepth; ++d) {
      uint32_t fragment_k[kRows][4], fragment_v[kRows][4];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        Tile::left(fragment_k[i], tile_k, row + 16 * i, kDepth * d);
        Tile::left(fragment_v[i], tile_v, row + 16 * i, kDepth * d);
      }
#pragma unroll
      for (int j = 0; j < kBlocks; j += 2) {
        uint32_t fragment_q[4], fragment_dout[4];
        Tile::right_transposed(fragment_q, tile_q, column + 8 * j, kDepth * d);
        Tile::right_transposed(fragment_dout, tile_dout, column + 8 * j, kDepth * d);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          multiply_pair<kOperand>(scores[i][j], scores[i][j + 1], fragment_k[i], fragment_q);
          multiply_pair<kOperand>(slopes[i][j], slopes[i][j + 1], fragment_v[i], fragment_dout);
        }
      }
    }
    const float scale = p.scale * kLog2E;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int key0 = first_key + 16 * i;
      uint32_t kept = ~0u;
      if constexpr (kDropout) kept = p.kept_transposed<kBlocks>(pair, first_query, key0);
      const bool is_masked = key0 + 16 > p.keys || (p.causal && first_query < key0 + 15);
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          // Queries beyond the last have zeros in both tiles and in both rows: they add nothing.
          const int at = 8 * j + 2 * q + c;
          const float lse = stage_lse[column + at] * kLog2E, delta = stage_delta[column + at];
#pragma unroll
          for (int e = c; e < 4; e += 2) {
            float probability = ptx::ex2_approx(std::fma(scores[i][j][e], scale, -lse));
            const int key = key0 + g + 8 * (e / 2);
            if (is_masked && (key >= p.keys || (p.causal && key > first_query + at))) {
              probability = 0;
            }
            float dp = slopes[i][j][e], dropped = probability;
            if constexpr (kDropout) {
              const float factor = (kept >> (4 * j + e) & 1) == 0 ? 0 : p.kept_factor();
              dp *= factor;
              dropped *= factor;
            }
            scores[i][j][e] = dropped;
            slopes[i][j][e] = probability == 0 ? 0 : probability * (dp - delta);
          }
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kColumns / kDepth; ++k) {
      uint32_t fragment_p[kRows][4], fragment_ds[kRows][4];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        pack_scores<kOperand>(fragment_p[i], scores[i], k);
        pack_scores<kOperand>(fragment_ds[i], slopes[i], k);
      }
#pragma unroll
      for (int c = 0; c < kWidth / 8; c += 2) {
        uint32_t fragment_q[4], fragment_dout[4];
        Tile::right(fragment_dout, tile_dout, column + kDepth * k, 8 * c);
        Tile::right(fragment_q, tile_q, column + kDepth * k, 8 * c);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          multiply_pair<kOperand>(dv[i][c], dv[i][c + 1], fragment_p[i], fragment_dout);
          multiply_pair<kOperand>(dk[i][c], dk[i][c + 1], fragment_ds[i], fragment_q);
        }
      }
    }
  }

  /// The tiles of keys and values become scratch memory, each warp's rows its own.
  __device__ __forceinline__ void store(Element* scratch_k, Element* scratch_v, int b, int h) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      store_rows<kWidth, kOperand>(dk[i], p.scale, p.scale, scratch_k, row + 16 * i, 0,
                                   p.dk.of<Element>(b, h), p.dk, first_key + 16 * i, p.keys,
                                   p.width);
      store_rows<kWidth, kOperand>(dv[i], 1, 1, scratch_v, row + 16 * i, 0, p.dv.of<Element>(b, h),
                                   p.dv, first_key + 16 * i, p.keys, p.width);
    }
  }
};

/// delta of every query of every pair: a row of the head to kWidth / 8 lanes.
inline constexpr int kDeltaThreads = 128;

template <int kWidth, MmaOperand kOperand>
__global__ void __launch_bounds__(kDeltaThreads)
    attention_delta_kernel(const __grid_constant__ MmaAttention p, int64_t rows) {
  using Element = MmaElement<kOperand>;
  constexpr int kLanes = kWidth / 8;
  const int part = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kDeltaThreads / kLanes) +
                      static_cast<int>(threadIdx.x) / kLanes;
  float sum = 0;
  if (row < rows) {
    const int64_t pair = row / p.queries, token = row % p.queries;
    const int b = static_cast<int>(pair / p.heads), h = static_cast<int>(pair % p.heads);
    sum = dot_of_parts<kOperand>(p.out.of<Element>(b, h) + token * p.out.token,
                                 p.dout.of<Element>(b, h) + token * p.dout.token, part, p.width);
  }
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, distance);
  }
  if (row < rows && part == 0) p.delta[row] = sum;
}

template <int kWidth, MmaOperand kOperand>
void launch_delta(const MmaAttention& p, int pairs, runtime::StreamHandle stream) {
  constexpr int kRows = kDeltaThreads / (kWidth / 8);
  const int64_t rows = static_cast<int64_t>(pairs) * p.queries;
  if (rows == 0) return;
  WEFT_LAUNCH((attention_delta_kernel<kWidth, kOperand>),
              static_cast<unsigned>((rows + kRows - 1) / kRows), kDeltaThreads, 0, stream, p, rows);
}

/// Calls f(kWidth, kOperand, kDropout as integral constants): the instance of a kernel that a
/// problem takes.
template <class F>
void with_instance(const AttentionProblem& p, F&& f) {
  const auto with_dropout = [&](auto width, auto operand) {
    p.dropout > 0 ? f(width, operand, std::true_type()) : f(width, operand, std::false_type());
  };
  const auto with_dtype = [&](auto width) {
    using enum MmaOperand;
    if (p.dtype() == DType::f32) {
      with_dropout(width, std::integral_constant<MmaOperand, tf32>());
    } else if (p.dtype() == DType::bf16) {
      with_dropout(width, std::integral_constant<MmaOperand, bf16>());
    } else {
      with_dropout(width, std::integral_constant<MmaOperand, f16>());
    }
  };
  const int64_t width = p.q.size(3);
  if (width <= 32) return with_dtype(std::integral_constant<int, 32>());
  if (width <= 64) return with_dtype(std::integral_constant<int, 64>());
  with_dtype(std::integral_constant<int, 128>());
}

}  // namespace weft::kernels
