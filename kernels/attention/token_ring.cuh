// A walk over the tokens of two tensors of a head: a ring of stages in shared memory, which
// cp.async fills while earlier ones are in use, and what the gradients of other tokens get from a
// stage.
//
//   hazard                                             what orders it
//   a stage is read before its copies are complete     cp_async_wait, then the barrier
//   a stage is overwritten while a warp reads it       the same barrier: it was read before it
#pragma once

#include "kernels/attention/attention_mma.cuh"

namespace weft::kernels {

/// kTokens tokens to a stage: of k and v, or, kOfQueries, of q and dout with their lse and delta.
/// Step s of the walk, tokens s kTokens.., lies in stage s % kStages.
template <class Tile, int kStages, int kTokens, bool kOfQueries>
struct TokenRing {
  using Element = typename Tile::Element;
  static constexpr int kTileElements = Tile::elements(kTokens);
  static constexpr size_t kTileBytes = size_t{kStages} * 2 * kTileElements * sizeof(Element);
  static constexpr size_t kRowBytes = kOfQueries ? kStages * 2 * kTokens * sizeof(float) : 0;
  static constexpr size_t kBytes = kTileBytes + kRowBytes;

  const MmaAttention& p;
  Element* const stages;
  const int threads, tokens;  // of the block, of the head
  const int steps;            // that the walk ends before
  const Element *head_qk, *head_vd;
  int64_t pair_row;

  __device__ __forceinline__ TokenRing(const MmaAttention& p, Element* stages, int threads,
                                       const Pair& pair, int end)
      : p(p),
        stages(stages),
        threads(threads),
        tokens(kOfQueries ? p.queries : p.keys),
        steps((end + kTokens - 1) / kTokens),
        head_qk((kOfQueries ? p.q : p.k).template of<Element>(pair)),
        head_vd((kOfQueries ? p.dout : p.v).template of<Element>(pair)),
        pair_row(static_cast<int64_t>(pair.index) * p.queries) {}

  /// q or k of a step's tokens; dout or v.
  __device__ __forceinline__ Element* qk(int step) const {
    return stages + step % kStages * 2 * kTileElements;
  }
  __device__ __forceinline__ Element* vd(int step) const { return qk(step) + kTileElements; }
  __device__ __forceinline__ float* lse(int step) const {
    auto* const rows = reinterpret_cast<float*>(stages + kStages * 2 * kTileElements);
    return rows + step % kStages * 2 * kTokens;
  }
  __device__ __forceinline__ float* delta(int step) const { return lse(step) + kTokens; }

  /// Begins the copies of the walk's first stages.
  __device__ __forceinline__ void start(int step) const {
    for (int s = step; s < step + kStages - 1; ++s) load(s);
  }
  /// All may read the step's stage now, and none the last one's: copies of a later one begin there.
  __device__ __forceinline__ void advance(int step) const {
    ptx::cp_async_wait<kStages - 2>();
    __syncthreads();
    load(step + kStages - 1);
  }

 private:
  __device__ __forceinline__ void load(int step) const {
    if (step < steps) {
      const int first = step * kTokens;
      const HeadRows &layout_qk = kOfQueries ? p.q : p.k, &layout_vd = kOfQueries ? p.dout : p.v;
      Tile::load(qk(step), kTokens, head_qk, layout_qk.token, first, tokens, p.width, threads);
      Tile::load(vd(step), kTokens, head_vd, layout_vd.token, first, tokens, p.width, threads);
      if constexpr (kOfQueries) {
#pragma unroll 1
        for (int i = static_cast<int>(threadIdx.x); i < 2 * kTokens; i += threads) {
          const int query = first + i % kTokens;
          const float* const from = i < kTokens ? p.lse : p.delta;
          ptx::cp_async<4>(lse(step) + i, from + pair_row + min(query, tokens - 1),
                           query < tokens ? 4 : 0);
        }
      }
    }
    ptx::cp_async_commit();  // an empty group at the end keeps the count
  }
};

/// The gradients of a warp's own 16 kRows tokens of a head, rows row.. of their tiles, from a walk
/// over the others, kColumns at a time. Rows of the scores are the own tokens:
///
///   queries:  dS = P (dout v^T - delta)      dq += dS k
///   keys:     dS^T, P^T                      dk += dS^T q, dv += dropout(P)^T dout
///
/// qk stands for q of queries and k of keys, vd for dout of queries and v of keys.
template <int kWidth, MmaOperand kOperand, bool kDropout, bool kOfKeys, int kRows, int kColumns>
struct Gradients {
  using Element = MmaElement<kOperand>;
  using Tile = TokenTile<kWidth, kOperand>;
  static constexpr int kBlocks = kColumns / 8;
  // Steps along the heads: of keys few, for want of registers.
  static constexpr int kUnrolled = !kOfKeys        ? kWidth / Tile::kDepth
                                   : kWidth == 128 ? 1
                                                   : kWidth / 16;

  struct Query {
    float lse = 0, delta = 0;  // lse in powers of 2
  };

  const MmaAttention& p;
  const Pair pair;
  const Element *const own_qk, *const own_vd;
  const int row, first;         // in the tiles, in the head
  Query own_queries[kRows][2];  // rows g and g + 8
  float dqk[kRows][kWidth / 8][4] = {}, dv[kRows][kWidth / 8][4] = {};
  float slopes[kRows][kBlocks][4];  // dS, or its transpose, of the last columns

  __device__ __forceinline__ Gradients(const MmaAttention& p, const Pair& pair,
                                       const Element* own_qk, const Element* own_vd, int row,
                                       int first)
      : p(p), pair(pair), own_qk(own_qk), own_vd(own_vd), row(row), first(first) {
    if constexpr (!kOfKeys) {
#pragma unroll
      for (int i = 0; i < 2 * kRows; ++i) {
        const int query = first + static_cast<int>(threadIdx.x) % kWarp / 4 + 8 * i;
        if (query >= p.queries) continue;
        const int64_t at = static_cast<int64_t>(pair.index) * p.queries + query;
        own_queries[i / 2][i % 2] = {p.lse[at] * kLog2E, p.delta[at]};
      }
    }
  }

  /// No query sees a key between the rows and the columns other..
  __device__ __forceinline__ bool is_hidden(int other) const {
    return kOfKeys ? first > p.last_key(other + kColumns - 1)
                   : other > p.last_key(first + 16 * kRows - 1);
  }

  /// Adds what columns column.. of a step's stage give, which are tokens other.. of the head.
  template <class Ring>
  __device__ __forceinline__ void add(const Ring& ring, int step, int column, int other) {
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
    for (int d = 0; d < kWidth; d += Tile::kDepth) {
      Tile::multiply(scores, own_qk, row, ring.qk(step), column, d);
      Tile::multiply(slopes, own_vd, row, ring.vd(step), column, d);
    }
    const float scale = p.scale * kLog2E;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int own = first + 16 * i;
      const int query0 = kOfKeys ? other : own, key0 = kOfKeys ? own : other;
      const bool is_masked = key0 + (kOfKeys ? 16 : kColumns) - 1 > p.last_key(query0);
      uint32_t kept = ~0u;
      if constexpr (kDropout) {
        kept = kOfKeys ? p.kept_transposed<kBlocks>(pair, query0, key0)
                       : p.kept_scores<kBlocks>(pair, query0, key0);
      }
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int at = 8 * j + 2 * q + c;
          // Queries beyond the last have zeros in both tiles and in both rows: they add nothing.
          Query of_column;
          if constexpr (kOfKeys) {
            of_column = {ring.lse(step)[column + at] * kLog2E, ring.delta(step)[column + at]};
          }
#pragma unroll
          for (int e = c; e < 4; e += 2) {
            const Query& of = kOfKeys ? of_column : own_queries[i][e / 2];
            const int of_row = g + 8 * (e / 2);
            const int query = query0 + (kOfKeys ? at : of_row);
            const int key = key0 + (kOfKeys ? of_row : at);
            float probability = ptx::ex2_approx(std::fma(scores[i][j][e], scale, -of.lse));
            if (is_masked && key > p.last_key(query)) probability = 0;
            float dp = slopes[i][j][e], dropped = probability;
            if constexpr (kDropout) {
              const float factor = (kept >> (4 * j + e) & 1) == 0 ? 0 : p.kept_factor;
              dp *= factor;
              dropped *= factor;
            }
            scores[i][j][e] = dropped;
            slopes[i][j][e] = probability == 0 ? 0 : probability * (dp - of.delta);
          }
        }
      }
    }
    if constexpr (kOfKeys) Tile::accumulate(dv, scores, ring.vd(step), column);
    Tile::accumulate(dqk, slopes, ring.qk(step), column);
  }

  /// The own tokens' tiles become scratch memory, each warp's rows its own.
  __device__ __forceinline__ void store(Element* scratch_qk, Element* scratch_vd) {
    const int tokens = kOfKeys ? p.keys : p.queries;
    const HeadRows& to = kOfKeys ? p.dk : p.dq;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int at = row + 16 * i, token = first + 16 * i;
      Tile::store(dqk[i], p.scale, p.scale, scratch_qk, at, 0, to.of<Element>(pair), to, token,
                  tokens, p.width);
      if constexpr (kOfKeys) {
        Tile::store(dv[i], 1, 1, scratch_vd, at, 0, p.dv.of<Element>(pair), p.dv, token, tokens,
                    p.width);
      }
    }
  }
};

}  // namespace weft::kernels
