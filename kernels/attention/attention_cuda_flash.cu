// Attention of any length on mma.sync without a stored score matrix (Dao, "FlashAttention-2", 2023,
// for one GPU generation of tensor cores: sm_80), of 16-bit heads, and of f32 ones in TF32's mode.
//
// Forward: a block of 4 warps owns 64 or 128 queries of a head, a warp 16 rows for each of its row
// blocks, kept as fragments; 64 keys and values at a time (of wide f32 heads 32) come by cp.async
// in a ring of stages. A row's maximum may grow with each tile: then its sum and its output are
// rescaled. The last tile of a row is also the only one that needs masks, with the tiles on the
// diagonal of a causal mask.
//
// Backward, without atomics: one kernel owns 64 queries and walks the keys (dq), one owns 64 keys
// and walks the queries (dk, dv). It computes the transposed scores, so that P^T and dS^T are left
// operands as they lie. Each recomputes P from lse: 7 products instead of the 5 that a single pass
// would need, whose dq had to be summed across blocks.
//
// token_ring.cuh says what orders the stages. Rows of Q's tile are reused for the output: they are
// their warp's own.
#include "kernels/attention/token_ring.cuh"

namespace weft::kernels {
namespace {

using namespace ptx;

constexpr int kWarps = FlashShape::kFlashWarps, kThreads = kWarps * kWarp;
constexpr int kTile = FlashShape::kFlashTile;

/// Tiles of `tile` that cover n.
__host__ __device__ constexpr int tiles_of(int n, int tile) { return (n + tile - 1) / tile; }

template <int kWidth, MmaOperand kOperand, bool kDropout>
struct Shape {
  using Element = MmaElement<kOperand>;
  using Tile = TokenTile<kWidth, kOperand>;
  static constexpr FlashShape kShape = {kWidth, sizeof(Element), kDropout};
  // Blocks of a multiprocessor that the registers shall suffice for.
  static constexpr int kBlocksPerSm = kWidth == 32 && !kShape.is_wide() ? 3 : 2;
  static constexpr int kStages = kShape.stages(), kStep = kShape.step();
  static constexpr int kRowBlocks = kShape.row_blocks();
  static constexpr int kQueries = 16 * kWarps * kRowBlocks;
  template <bool kOfQueries>
  using Ring = TokenRing<Tile, kStages, kStep, kOfQueries>;
  static constexpr size_t kForwardBytes =
      Tile::elements(kQueries) * sizeof(Element) + Ring<false>::kBytes;
  template <bool kOfKeys>
  static constexpr size_t kBackwardBytes =
      2 * Tile::elements(kTile) * sizeof(Element) + Ring<kOfKeys>::kBytes;
  static_assert(kForwardBytes == kShape.shared_bytes(false));
  static_assert(kBackwardBytes<true> == kShape.shared_bytes(true));
  // Backward: columns of scores that a warp holds at once. Dropout's words take registers, too.
  static constexpr int kColumnsOfKeys = kDropout && kWidth == 128 && kShape.is_wide() ? 16 : 32;
  template <bool kOfKeys>
  static constexpr int kColumns = kOfKeys         ? kColumnsOfKeys
                                  : kWidth == 128 ? 32
                                                  : 64;
};

/// Where the tile of a pair's tokens begins that a block owns. Under a causal mask the last queries
/// see the most keys: they begin first.
struct BlockPlace {
  Pair pair;
  int first;

  __device__ BlockPlace(int heads, int tokens, int tile, bool backwards)
      : pair(static_cast<int>(blockIdx.x) / tiles_of(tokens, tile), heads) {
    const int blocks = tiles_of(tokens, tile), index = static_cast<int>(blockIdx.x) % blocks;
    first = (backwards ? blocks - 1 - index : index) * tile;
  }
};

template <int kWidth, MmaOperand kOperand, bool kDropout>
__global__ void __launch_bounds__(kThreads, Shape<kWidth, kOperand, kDropout>::kBlocksPerSm)
    attention_flash_kernel(const __grid_constant__ MmaAttention p) {
  using S = Shape<kWidth, kOperand, kDropout>;
  using Tile = typename S::Tile;
  using Element = typename S::Element;
  constexpr int kRows = S::kRowBlocks, kBlocks = S::kStep / 8;
  WEFT_DYNAMIC_SHARED(Element, tile_q);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, q = lane % 4;
  const BlockPlace at(p.heads, p.queries, S::kQueries, p.causal);
  const int seen = p.last_key(at.first + S::kQueries - 1) + 1;
  const int warp_row = warp * 16 * kRows, first_row = at.first + warp_row;
  const typename S::template Ring<false> ring(p, tile_q + Tile::elements(S::kQueries), kThreads,
                                              at.pair, seen);
  Tile::load(tile_q, S::kQueries, p.q.of<Element>(at.pair), p.q.token, at.first, p.queries, p.width,
             kThreads);  // with the first stage's group
  ring.start(0);

  const float scale = p.scale * kLog2E;  // exponentials are powers of 2
  float out[kRows][kWidth / 8][4] = {};
  float max[kRows][2], sum[kRows][2];  // of rows g and g + 8: the maximum times scale; this lane's
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      max[i][r] = -INFINITY;
      sum[i][r] = 0;
    }
  }
  for (int step = 0; step < ring.steps; ++step) {
    ring.advance(step);
    const int key0 = step * S::kStep;
    const bool is_hidden = key0 > p.last_key(first_row + 16 * kRows - 1);
    if (first_row >= p.queries || is_hidden) continue;  // the same in a warp

    float scores[kRows][kBlocks][4] = {};
#pragma unroll
    for (int d = 0; d < kWidth; d += Tile::kDepth) {
      Tile::multiply(scores, tile_q, warp_row, ring.qk(step), 0, d);
    }
    if (key0 + S::kStep - 1 > p.last_key(first_row)) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int key = key0 + 8 * j + 2 * q + e % 2;
            const int query = first_row + 16 * i + g + 8 * (e / 2);
            if (key > p.last_key(query)) scores[i][j][e] = -INFINITY;
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float tile_max = -INFINITY;
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
          tile_max = std::fmax(std::fmax(tile_max, scores[i][j][2 * r]), scores[i][j][2 * r + 1]);
        }
        const float new_max = std::fmax(max[i][r], quad_max(tile_max) * scale);
        const float shrink = ex2_approx(max[i][r] - new_max);
        max[i][r] = new_max;
        float tile_sum = 0;
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
          for (int e = 2 * r; e < 2 * r + 2; ++e) {
            scores[i][j][e] = ex2_approx(std::fma(scores[i][j][e], scale, -new_max));
            tile_sum += scores[i][j][e];
          }
        }
        sum[i][r] = sum[i][r] * shrink + tile_sum;
#pragma unroll
        for (int c = 0; c < kWidth / 8; ++c) {
          out[i][c][2 * r] *= shrink;
          out[i][c][2 * r + 1] *= shrink;
        }
      }
      if constexpr (kDropout) {
        const uint32_t kept = p.kept_scores<kBlocks>(at.pair, first_row + 16 * i, key0);
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if ((kept >> (4 * j + e) & 1) == 0) scores[i][j][e] = 0;
          }
        }
      }
    }
    Tile::accumulate(out, scores, ring.vd(step), 0);
  }
  cp_async_wait<0>();
  __syncthreads();  // Q has arrived, though there be no keys
  if (first_row >= p.queries) return;
  Element* const to = p.out.of<Element>(at.pair);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = first_row + 16 * i;
    const float factor = p.finish_query<kDropout>(at.pair, row + g, max[i][0], sum[i][0]);
    const float factor8 = p.finish_query<kDropout>(at.pair, row + g + 8, max[i][1], sum[i][1]);
    Tile::store(out[i], factor, factor8, tile_q, warp_row + 16 * i, 0, to, p.out, row, p.queries,
                p.width);
  }
}

/// dq of a block's queries, or dk and dv of its keys.
template <int kWidth, MmaOperand kOperand, bool kDropout, bool kOfKeys>
__global__ void __launch_bounds__(kThreads, Shape<kWidth, kOperand, kDropout>::kBlocksPerSm)
    attention_flash_backward_kernel(const __grid_constant__ MmaAttention p) {
  using S = Shape<kWidth, kOperand, kDropout>;
  using Tile = typename S::Tile;
  using Element = typename S::Element;
  constexpr int kColumns = S::template kColumns<kOfKeys>;
  WEFT_DYNAMIC_SHARED(Element, own_qk);
  Element* const own_vd = own_qk + Tile::elements(kTile);
  const int tokens = kOfKeys ? p.keys : p.queries, others = kOfKeys ? p.queries : p.keys;
  const BlockPlace at(p.heads, tokens, kTile, !kOfKeys && p.causal);
  // Under a causal mask a key is seen by no query before it.
  const int step0 = kOfKeys && p.causal ? min(at.first, others) / S::kStep : 0;
  const int end = kOfKeys ? others : p.last_key(at.first + kTile - 1) + 1;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16, first_row = at.first + warp_row;
  const typename S::template Ring<kOfKeys> ring(p, own_vd + Tile::elements(kTile), kThreads,
                                                at.pair, end);
  const HeadRows &qk = kOfKeys ? p.k : p.q, &vd = kOfKeys ? p.v : p.dout;
  Tile::load(own_qk, kTile, qk.of<Element>(at.pair), qk.token, at.first, tokens, p.width, kThreads);
  Tile::load(own_vd, kTile, vd.of<Element>(at.pair), vd.token, at.first, tokens, p.width, kThreads);
  ring.start(step0);

  Gradients<kWidth, kOperand, kDropout, kOfKeys, 1, kColumns> sums(p, at.pair, own_qk, own_vd,
                                                                   warp_row, first_row);
  for (int step = step0; step < ring.steps; ++step) {
    ring.advance(step);
    if (first_row >= tokens) continue;
#pragma unroll 1
    for (int column = 0; column < S::kStep; column += kColumns) {
      const int other = step * S::kStep + column;
      if (other < others && !sums.is_hidden(other)) sums.add(ring, step, column, other);
    }
  }
  cp_async_wait<0>();
  __syncthreads();
  if (first_row < tokens) sums.store(own_qk, own_vd);
}

}  // namespace

void attention_cuda_flash(const AttentionProblem& problem) {
  run_instance(problem, [&]<int kWidth, MmaOperand kOperand, bool kDropout>(
                            const MmaAttention& p, runtime::StreamHandle stream) {
    using S = Shape<kWidth, kOperand, kDropout>;
    const auto blocks = [&](int tokens, int tile) {
      return static_cast<unsigned>(p.pairs * tiles_of(tokens, tile));
    };
    if (!problem.backward()) {
      if (p.queries == 0) return;
      WEFT_LAUNCH((attention_flash_kernel<kWidth, kOperand, kDropout>),
                  blocks(p.queries, S::kQueries), kThreads, S::kForwardBytes, stream, p);
      return;
    }
    if (p.queries > 0) {
      WEFT_LAUNCH((attention_flash_backward_kernel<kWidth, kOperand, kDropout, false>),
                  blocks(p.queries, kTile), kThreads, S::template kBackwardBytes<false>, stream, p);
    }
    if (p.keys > 0) {
      WEFT_LAUNCH((attention_flash_backward_kernel<kWidth, kOperand, kDropout, true>),
                  blocks(p.keys, kTile), kThreads, S::template kBackwardBytes<true>, stream, p);
    }
  });
}

}  // namespace weft::kernels
