// Attention over few keys, on mma.sync: all of K and V of a head lie in shared memory at once, so a
// row of scores is complete before its softmax, and nothing is rescaled. Scores are computed in
// blocks of 16 by 16: of ViT's 197 keys 208 columns, where a kernel for any length takes 256.
//
// Forward: a block owns some queries of a head, a warp 16 at a time; their scores over every key
// stay in its registers, where P replaces them. Up to 4 warps, so that two blocks share a
// multiprocessor and one's copies hide behind the other's products; of f32 heads, whose keys and
// values take twice the memory, one block of up to 8. V may arrive while the first scores are
// computed.
//
// Backward: a block owns a head, a warp 16 or 32 of its keys, whose dk and dv stay in registers.
// Chunks of queries come in a ring of two stages. dS of a chunk is passed through shared memory,
// transposed; then the warps share out the chunk's dq among them, 16 by 16 elements at a time. One
// pass, 5 products, every sum in one warp and one order: no atomics.
//
//   hazard                                              what orders it
//   K, V or a stage is read before it is complete       cp_async_wait, then a barrier
//   a stage or dS is overwritten while a warp reads it  the barrier after the wait
//   dS is read before all warps wrote it                the second barrier of a chunk
//   Q's stage becomes dq's way out                      that barrier: all products with Q are over
#include "kernels/attention/attention_short.h"
#include "kernels/attention/token_ring.cuh"

namespace weft::kernels {
namespace {

using namespace ptx;

__host__ __device__ constexpr int blocks_of(int n, int block) { return (n + block - 1) / block; }

/// kKeys: as many keys as the registers hold the scores of. The bound of one block keeps ptxas from
/// rounding registers down to a step of occupancy, for which it would spill.
template <int kWidth, int kKeys, MmaOperand kOperand, bool kDropout>
__global__ void __launch_bounds__(short_forward_warps(sizeof(MmaElement<kOperand>)) * kWarp, 1)
    attention_short_kernel(const __grid_constant__ MmaAttention p, int parts, int row_blocks) {
  using Element = MmaElement<kOperand>;
  using Tile = TokenTile<kWidth, kOperand>;
  constexpr int kBlocks = kKeys / 16, kDepth = kMmaDepth<kOperand>;
  WEFT_DYNAMIC_SHARED(Element, shared);
  const int key_blocks = blocks_of(p.keys, 16), threads = static_cast<int>(blockDim.x);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, warps = threads / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, q = lane % 4;
  const Pair pair(static_cast<int>(blockIdx.x) / parts, p.heads);
  const int first_block = static_cast<int>(blockIdx.x) % parts * row_blocks;
  const int own_blocks = min(row_blocks, blocks_of(p.queries, 16) - first_block);
  Element* const tile_k = shared;
  Element* const tile_v = tile_k + Tile::elements(16 * key_blocks);
  Element* const tile_q = tile_v + Tile::elements(16 * key_blocks);
  Tile::load(tile_q, 16 * own_blocks, p.q.of<Element>(pair), p.q.token, 16 * first_block, p.queries,
             p.width, threads);
  Tile::load(tile_k, 16 * key_blocks, p.k.of<Element>(pair), p.k.token, 0, p.keys, p.width,
             threads);
  cp_async_commit();
  Tile::load(tile_v, 16 * key_blocks, p.v.of<Element>(pair), p.v.token, 0, p.keys, p.width,
             threads);
  cp_async_commit();
  cp_async_wait<1>();
  __syncthreads();

  const float scale = p.scale * kLog2E;  // exponentials are powers of 2
  Element* const to = p.out.of<Element>(pair);
  for (int round = 0; round * warps < own_blocks; ++round) {
    const int row_block = round * warps + warp, first_row = 16 * (first_block + row_block);
    const bool has_rows = row_block < own_blocks;
    // Blocks of keys that a row of these sees.
    const int seen = !has_rows ? 0 : p.causal ? min(key_blocks, first_row / 16 + 1) : key_blocks;
    float scores[2 * kBlocks][4] = {};
#pragma unroll 1  // more fragments at once would not fit the registers
    for (int d = 0; d < kWidth / kDepth; ++d) {
      uint32_t fragment_q[4];
      if (has_rows) Tile::left(fragment_q, tile_q, 16 * row_block, kDepth * d);
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        if (j >= seen) continue;
        uint32_t fragment_k[4];
        Tile::right_transposed(fragment_k, tile_k, 16 * j, kDepth * d);
        multiply_pair<kOperand>(scores[2 * j], scores[2 * j + 1], fragment_q, fragment_k);
      }
    }
    float max[2] = {-INFINITY, -INFINITY}, sum[2] = {};  // of rows g and g + 8
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      if (j >= seen) continue;
      // Not in terms of last_key, which would cost registers.
      const bool is_masked = 16 * j + 16 > p.keys || (p.causal && 16 * j + 15 > first_row);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int key = 16 * j + 8 * half + 2 * q + e % 2, query = first_row + g + 8 * (e / 2);
          float& score = scores[2 * j + half][e];
          if (is_masked && (key >= p.keys || (p.causal && key > query))) score = -INFINITY;
          max[e / 2] = std::fmax(max[e / 2], score);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) max[r] = quad_max(max[r]) * scale;
    if (round == 0) {
      cp_async_wait<0>();
      __syncthreads();  // V is complete
    }
    if (!has_rows) continue;
    float out[kWidth / 8][4] = {};
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      if (j >= seen) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& score = scores[2 * j + half][e];
          score = ex2_approx(std::fma(score, scale, -max[e / 2]));
          sum[e / 2] += score;
        }
      }
      if constexpr (kDropout) {
        const uint32_t kept = p.kept_scores<2>(pair, first_row, 16 * j);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          if ((kept >> e & 1) == 0) scores[2 * j + e / 4][e % 4] = 0;
        }
      }
#pragma unroll
      for (int k = 0; k < 16 / kDepth; ++k) {
        uint32_t fragment_p[4];
        pack_scores<kOperand>(fragment_p, scores, 16 / kDepth * j + k);
#pragma unroll
        for (int c = 0; c < kWidth / 8; c += 2) {
          uint32_t fragment_v[4];
          Tile::right(fragment_v, tile_v, 16 * j + kDepth * k, 8 * c);
          multiply_pair<kOperand>(out[c], out[c + 1], fragment_p, fragment_v);
        }
      }
    }
    const float factor = p.finish_query<kDropout>(pair, first_row + g, max[0], sum[0]);
    const float factor8 = p.finish_query<kDropout>(pair, first_row + g + 8, max[1], sum[1]);
    Tile::store(out, factor, factor8, tile_q, 16 * row_block, 0, to, p.out, first_row, p.queries,
                p.width);
  }
}

template <int kWidth, int kQueries, MmaOperand kOperand, bool kDropout>
__global__ void __launch_bounds__(kShortBackwardWarps* kWarp)
    attention_short_backward_kernel(const __grid_constant__ MmaAttention p) {
  using Element = MmaElement<kOperand>;
  using Tile = TokenTile<kWidth, kOperand>;
  constexpr int kRows = short_backward_rows(kWidth), kDepth = kMmaDepth<kOperand>;
  using TileDs = TokenTile<kQueries, kOperand>;  // keys by queries
  WEFT_DYNAMIC_SHARED(Element, tile_k);
  const int threads = static_cast<int>(blockDim.x), warps = threads / kWarp;
  const int tile_keys = 16 * kRows * warps;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, q = lane % 4;
  const Pair pair(static_cast<int>(blockIdx.x), p.heads);
  Element* const tile_v = tile_k + Tile::elements(tile_keys);
  Element* const tile_ds = tile_v + Tile::elements(tile_keys);
  const TokenRing<Tile, kShortStages, kQueries, true> ring(p, tile_ds + TileDs::elements(tile_keys),
                                                           threads, pair, p.queries);
  Tile::load(tile_k, tile_keys, p.k.of<Element>(pair), p.k.token, 0, p.keys, p.width, threads);
  Tile::load(tile_v, tile_keys, p.v.of<Element>(pair), p.v.token, 0, p.keys, p.width, threads);
  ring.start(0);

  const int first_key = 16 * kRows * warp;
  Gradients<kWidth, kOperand, kDropout, true, kRows, 16> sums(p, pair, tile_k, tile_v, first_key,
                                                              first_key);
  Element* const to = p.dq.of<Element>(pair);
  for (int step = 0; step < ring.steps; ++step) {
    ring.advance(step);
    const int query0 = step * kQueries;
#pragma unroll 1
    for (int column = 0; column < kQueries; column += 16) {
      const int first_query = query0 + column;
      if (first_query >= p.queries || sums.is_hidden(first_query)) continue;
      sums.add(ring, step, column, first_query);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int row = first_key + 16 * i + g, query = column + 8 * j + 2 * q;
          const float(&slopes)[4] = sums.slopes[i][j];
          store_pair<kOperand>(tile_ds + TileDs::place(row, query), slopes[0], slopes[1]);
          store_pair<kOperand>(tile_ds + TileDs::place(row + 8, query), slopes[2], slopes[3]);
        }
      }
    }
    __syncthreads();  // dS is complete
    constexpr int kColumnUnits = kWidth / 16;
#pragma unroll 1
    for (int unit = warp; unit < kQueries / 16 * kColumnUnits; unit += warps) {
      const int row = unit / kColumnUnits * 16, column = unit % kColumnUnits * 16;
      const int first_query = query0 + row;
      if (first_query >= p.queries) continue;
      const int key_blocks = blocks_of(p.keys, 16);
      const int seen = p.causal ? min(key_blocks, first_query / 16 + 1) : key_blocks;
      float dq[2][4] = {};
      for (int key = 0; key < 16 * seen; key += kDepth) {
        uint32_t fragment_ds[4], fragment_k[4];
        TileDs::left_transposed(fragment_ds, tile_ds, key, row);
        Tile::right(fragment_k, tile_k, key, column);
        multiply_pair<kOperand>(dq[0], dq[1], fragment_ds, fragment_k);
      }
      Tile::store(dq, p.scale, p.scale, ring.qk(step), row, column, to, p.dq, first_query,
                  p.queries, p.width);
    }
  }
  cp_async_wait<0>();
  __syncthreads();  // K has been read by all
  sums.store(tile_k, tile_v);
}

template <int kWidth, MmaOperand kOperand, bool kDropout>
void forward(const MmaAttention& p, runtime::StreamHandle stream) {
  const ShortForward split(p.pairs, p.queries, sizeof(MmaElement<kOperand>));
  const auto blocks = static_cast<unsigned>(p.pairs * split.parts);
  const auto bytes = static_cast<size_t>(split.shared_bytes(p.keys, kWidth));
  const auto launch = [&](auto kernel) {
    WEFT_LAUNCH(kernel, blocks, split.warps * kWarp, bytes, stream, p, split.parts,
                split.row_blocks);
  };
  constexpr int kMostKeys = short_most_keys(kWidth, sizeof(MmaElement<kOperand>));
  constexpr int kFewKeys = std::min(128, kMostKeys);
  if (p.keys > kFewKeys) {
    return launch(attention_short_kernel<kWidth, kMostKeys, kOperand, kDropout>);
  }
  launch(attention_short_kernel<kWidth, kFewKeys, kOperand, kDropout>);
}

}  // namespace

void attention_cuda_short(const AttentionProblem& problem) {
  run_instance(problem, [&]<int kWidth, MmaOperand kOperand, bool kDropout>(
                            const MmaAttention& p, runtime::StreamHandle stream) {
    if (!problem.backward()) {
      if (p.queries > 0) forward<kWidth, kOperand, kDropout>(p, stream);
      return;
    }
    constexpr int64_t kElementBytes = sizeof(MmaElement<kOperand>);
    const ShortBackward split(
        p.keys, kWidth, kElementBytes,
        static_cast<int64_t>(runtime::limits(problem.device().index).shared_memory_per_block));
    const auto launch = [&](auto kernel) {
      WEFT_LAUNCH(kernel, static_cast<unsigned>(p.pairs),
                  static_cast<unsigned>(split.warps * kWarp),
                  static_cast<size_t>(split.shared_bytes()), stream, p);
    };
    constexpr int kQueries = short_queries(kElementBytes), kFew = short_few_queries(kElementBytes);
    if (split.queries == kQueries) {
      launch(attention_short_backward_kernel<kWidth, kQueries, kOperand, kDropout>);
    } else {
      launch(attention_short_backward_kernel<kWidth, kFew, kOperand, kDropout>);
    }
  });
}

}  // namespace weft::kernels
