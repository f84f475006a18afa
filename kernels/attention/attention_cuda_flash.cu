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
//   hazard                                             what orders it
//   a stage is read before its copies are complete     cp_async_wait, then the barrier
//   a stage is overwritten while a warp reads it       the same barrier: it was read before it
//   rows of Q's tile are reused for the output         they are their warp's own; __syncwarp
#include "kernels/attention/attention_mma.cuh"

namespace weft::kernels {
namespace {

using namespace ptx;

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kTile = 64;  // tokens that a block of backward owns

template <int kWidth, MmaOperand kOperand, bool kDropout>
struct Shape {
  using Element = MmaElement<kOperand>;
  using Tile = TokenTile<kWidth, Element>;
  static constexpr bool kIsWide = sizeof(Element) == 4;
  // Blocks of a multiprocessor that the registers shall suffice for.
  static constexpr int kBlocksPerSm = kWidth == 32 && !kIsWide ? 3 : 2;
  static constexpr int kStages = kWidth == 128 || kIsWide ? 2 : 3;
  // Tokens that a stage brings: with 64 of 512 bytes backward would exceed the 163 KiB of sm_80.
  static constexpr int kStep = kWidth == 128 && kIsWide ? 32 : 64;
  // Forward: 16-row blocks of a warp. Two share each fragment of K and V where the registers reach.
  static constexpr int kRowBlocks = kWidth == 128 || kDropout ? 1 : 2;
  static constexpr int kQueries = 16 * kWarps * kRowBlocks;
  // Backward: columns of scores that a warp holds at once.
  static constexpr int kColumns = kWidth == 128 ? 32 : 64;
  static constexpr size_t kTileElements = Tile::elements(kTile);
  static constexpr size_t kStepElements = Tile::elements(kStep);
  static constexpr size_t kForwardBytes =
      (Tile::elements(kQueries) + 2 * kStages * kStepElements) * sizeof(Element);
  static constexpr size_t kBackwardBytes =
      (2 * kTileElements + 2 * kStages * kStepElements) * sizeof(Element);
  // lse and delta of a stage's queries
  static constexpr size_t kRowBytes = kStages * 2 * kStep * sizeof(float);
};

/// Tiles of `tile` that cover n.
__host__ __device__ constexpr int tiles_of(int n, int tile) { return (n + tile - 1) / tile; }

/// Which pair and which tile of its tokens a block owns. Under a causal mask the last queries see
/// the most keys: they begin first.
struct BlockPlace {
  int pair, b, h, first;

  __device__ BlockPlace(int heads, int tokens, int tile, bool backwards) {
    const int blocks = tiles_of(tokens, tile), index = static_cast<int>(blockIdx.x);
    pair = index / blocks;
    b = pair / heads;
    h = pair % heads;
    first = (backwards ? blocks - 1 - index % blocks : index % blocks) * tile;
  }
};

template <int kWidth, MmaOperand kOperand, bool kDropout>
__global__ void __launch_bounds__(kThreads, Shape<kWidth, kOperand, kDropout>::kBlocksPerSm)
    attention_flash_kernel(const __grid_constant__ MmaAttention p) {
  using S = Shape<kWidth, kOperand, kDropout>;
  using Tile = typename S::Tile;
  using Element = typename S::Element;
  constexpr int kRows = S::kRowBlocks, kColumnBlocks = S::kStep / 8, kDepth = kMmaDepth<kOperand>;
  WEFT_DYNAMIC_SHARED(Element, shared);
  Element* const tile_q = shared;
  Element* const stages = shared + Tile::elements(S::kQueries);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, q = lane % 4;
  const BlockPlace at(p.heads, p.queries, S::kQueries, p.causal);
  const Element* const keys = p.k.of<Element>(at.b, at.h);
  const Element* const values = p.v.of<Element>(at.b, at.h);
  const int seen = p.causal ? min(p.keys, at.first + S::kQueries) : p.keys;
  const int steps = tiles_of(seen, S::kStep);
  const int warp_row = warp * 16 * kRows, first_row = at.first + warp_row;
  const auto tile_k = [&](int step) { return stages + step % S::kStages * 2 * S::kStepElements; };
  const auto tile_v = [&](int step) { return tile_k(step) + S::kStepElements; };
  const auto load = [&](int step) {
    if (step < steps) {
      const int first = step * S::kStep;
      Tile::load(tile_k(step), S::kStep, keys, p.k.token, first, p.keys, p.width, kThreads);
      Tile::load(tile_v(step), S::kStep, values, p.v.token, first, p.keys, p.width, kThreads);
    }
    cp_async_commit();  // an empty group at the end keeps the count
  };
  Tile::load(tile_q, S::kQueries, p.q.of<Element>(at.b, at.h), p.q.token, at.first, p.queries,
             p.width,
             kThreads);  // with the first stage's group
  for (int step = 0; step < S::kStages - 1; ++step) load(step);

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
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<S::kStages - 2>();
    __syncthreads();
    load(step + S::kStages - 1);
    const int key0 = step * S::kStep;
    const bool is_hidden = p.causal && key0 >= first_row + 16 * kRows;
    if (first_row >= p.queries || is_hidden) continue;  // the same in a warp

    float scores[kRows][kColumnBlocks][4] = {};
#pragma unroll
    for (int d = 0; d < kWidth / kDepth; ++d) {
      uint32_t fragment_q[kRows][4];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        Tile::left(fragment_q[i], tile_q, warp_row + 16 * i, kDepth * d);
      }
#pragma unroll
      for (int j = 0; j < kColumnBlocks; j += 2) {
        uint32_t fragment_k[4];
        Tile::right_transposed(fragment_k, tile_k(step), 8 * j, kDepth * d);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          multiply_pair<kOperand>(scores[i][j], scores[i][j + 1], fragment_q[i], fragment_k);
        }
      }
    }
    if (key0 + S::kStep > p.keys || (p.causal && key0 + S::kStep > first_row + 1)) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kColumnBlocks; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int key = key0 + 8 * j + 2 * q + e % 2;
            const int query = first_row + 16 * i + g + 8 * (e / 2);
            if (key >= p.keys || (p.causal && key > query)) scores[i][j][e] = -INFINITY;
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
        for (int j = 0; j < kColumnBlocks; ++j) {
          tile_max = larger(larger(tile_max, scores[i][j][2 * r]), scores[i][j][2 * r + 1]);
        }
        tile_max = quad_join(tile_max, [](float a, float b) { return larger(a, b); });
        const float new_max = larger(max[i][r], tile_max * scale);
        const float shrink = ex2_approx(max[i][r] - new_max);
        max[i][r] = new_max;
        float tile_sum = 0;
#pragma unroll
        for (int j = 0; j < kColumnBlocks; ++j) {
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
        const uint32_t kept = p.kept_scores<kColumnBlocks>(at.pair, first_row + 16 * i, key0);
#pragma unroll
        for (int j = 0; j < kColumnBlocks; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if ((kept >> (4 * j + e) & 1) == 0) scores[i][j][e] = 0;
          }
        }
      }
    }
#pragma unroll
    for (int k = 0; k < S::kStep / kDepth; ++k) {
      uint32_t fragment_p[kRows][4];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        pack_scores<kOperand>(fragment_p[i], scores[i], k);
      }
#pragma unroll
      for (int c = 0; c < kWidth / 8; c += 2) {
        uint32_t fragment_v[4];
        Tile::right(fragment_v, tile_v(step), kDepth * k, 8 * c);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          multiply_pair<kOperand>(out[i][c], out[i][c + 1], fragment_p[i], fragment_v);
        }
      }
    }
  }
  cp_async_wait<0>();
  __syncthreads();  // Q has arrived, though there be no keys
  if (first_row >= p.queries) return;
  Element* const to = p.out.of<Element>(at.b, at.h);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float total = quad_join(sum[i][r], [](float a, float b) { return a + b; });
      factor[r] = steps == 0 ? 0 : (kDropout ? p.kept_factor() : 1) / total;
      const int query = first_row + 16 * i + g + 8 * r;
      if (q == 0 && query < p.queries) {
        p.lse[static_cast<int64_t>(at.pair) * p.queries + query] =
            max[i][r] * kLn2 + std::log(total);
      }
    }
    store_rows<kWidth, kOperand>(out[i], factor[0], factor[1], tile_q, warp_row + 16 * i, 0, to,
                                 p.out, first_row + 16 * i, p.queries, p.width);
  }
}

template <int kWidth, MmaOperand kOperand, bool kDropout>
__global__ void __launch_bounds__(kThreads, Shape<kWidth, kOperand, kDropout>::kBlocksPerSm)
    attention_flash_dq_kernel(const __grid_constant__ MmaAttention p) {
  using S = Shape<kWidth, kOperand, kDropout>;
  using Tile = typename S::Tile;
  using Element = typename S::Element;
  constexpr int kColumnBlocks = S::kColumns / 8, kDepth = kMmaDepth<kOperand>;
  WEFT_DYNAMIC_SHARED(Element, shared);
  Element* const tile_q = shared;
  Element* const tile_dout = tile_q + S::kTileElements;
  Element* const stages = tile_dout + S::kTileElements;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, q = lane % 4;
  const BlockPlace at(p.heads, p.queries, kTile, p.causal);
  const Element* const keys = p.k.of<Element>(at.b, at.h);
  const Element* const values = p.v.of<Element>(at.b, at.h);
  const int steps = tiles_of(p.causal ? min(p.keys, at.first + kTile) : p.keys, S::kStep);
  const int warp_row = 16 * warp, first_row = at.first + warp_row;
  const auto tile_k = [&](int step) { return stages + step % S::kStages * 2 * S::kStepElements; };
  const auto tile_v = [&](int step) { return tile_k(step) + S::kStepElements; };
  const auto load = [&](int step) {
    if (step < steps) {
      const int first = step * S::kStep;
      Tile::load(tile_k(step), S::kStep, keys, p.k.token, first, p.keys, p.width, kThreads);
      Tile::load(tile_v(step), S::kStep, values, p.v.token, first, p.keys, p.width, kThreads);
    }
    cp_async_commit();
  };
  Tile::load(tile_q, kTile, p.q.of<Element>(at.b, at.h), p.q.token, at.first, p.queries, p.width,
             kThreads);
  Tile::load(tile_dout, kTile, p.dout.of<Element>(at.b, at.h), p.dout.token, at.first, p.queries,
             p.width, kThreads);
  for (int step = 0; step < S::kStages - 1; ++step) load(step);

  const float scale = p.scale * kLog2E;
  float lse[2] = {}, delta[2] = {};  // of rows g and g + 8, lse in powers of 2
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int query = first_row + g + 8 * r;
    if (query >= p.queries) continue;
    const int64_t row = static_cast<int64_t>(at.pair) * p.queries + query;
    lse[r] = p.lse[row] * kLog2E;
    delta[r] = p.delta[row];
  }
  float dq[kWidth / 8][4] = {};
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<S::kStages - 2>();
    __syncthreads();
    load(step + S::kStages - 1);
    const int key0 = step * S::kStep;
    if (first_row >= p.queries || (p.causal && key0 >= first_row + 16)) continue;
    const bool is_masked =
        key0 + S::kStep > p.keys || (p.causal && key0 + S::kStep > first_row + 1);
#pragma unroll 1
    for (int column = 0; column < S::kStep; column += S::kColumns) {
      float scores[kColumnBlocks][4] = {}, slopes[kColumnBlocks][4] = {};
#pragma unroll
      for (int d = 0; d < kWidth / kDepth; ++d) {
        uint32_t fragment_q[4], fragment_dout[4];
        Tile::left(fragment_q, tile_q, warp_row, kDepth * d);
        Tile::left(fragment_dout, tile_dout, warp_row, kDepth * d);
#pragma unroll
        for (int j = 0; j < kColumnBlocks; j += 2) {
          uint32_t fragment[4];
          Tile::right_transposed(fragment, tile_k(step), column + 8 * j, kDepth * d);
          multiply_pair<kOperand>(scores[j], scores[j + 1], fragment_q, fragment);
          Tile::right_transposed(fragment, tile_v(step), column + 8 * j, kDepth * d);
          multiply_pair<kOperand>(slopes[j], slopes[j + 1], fragment_dout, fragment);
        }
      }
      uint32_t kept = ~0u;
      if constexpr (kDropout) {
        kept = p.kept_scores<kColumnBlocks>(at.pair, first_row, key0 + column);
      }
#pragma unroll
      for (int j = 0; j < kColumnBlocks; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int r = e / 2;
          float probability = ex2_approx(std::fma(scores[j][e], scale, -lse[r]));
          if (is_masked) {
            const int key = key0 + column + 8 * j + 2 * q + e % 2;
            if (key >= p.keys || (p.causal && key > first_row + g + 8 * r)) probability = 0;
          }
          float dp = slopes[j][e];
          if constexpr (kDropout) dp = (kept >> (4 * j + e) & 1) == 0 ? 0 : dp * p.kept_factor();
          scores[j][e] = probability == 0 ? 0 : probability * (dp - delta[r]);
        }
      }
#pragma unroll
      for (int k = 0; k < S::kColumns / kDepth; ++k) {
        uint32_t fragment_ds[4];
        pack_scores<kOperand>(fragment_ds, scores, k);
#pragma unroll
        for (int c = 0; c < kWidth / 8; c += 2) {
          uint32_t fragment_k[4];
          Tile::right(fragment_k, tile_k(step), column + kDepth * k, 8 * c);
          multiply_pair<kOperand>(dq[c], dq[c + 1], fragment_ds, fragment_k);
        }
      }
    }
  }
  cp_async_wait<0>();
  __syncthreads();
  if (first_row >= p.queries) return;
  store_rows<kWidth, kOperand>(dq, p.scale, p.scale, tile_q, warp_row, 0,
                               p.dq.of<Element>(at.b, at.h), p.dq, first_row, p.queries, p.width);
}

template <int kWidth, MmaOperand kOperand, bool kDropout>
__global__ void __launch_bounds__(kThreads, Shape<kWidth, kOperand, kDropout>::kBlocksPerSm)
    attention_flash_dkv_kernel(const __grid_constant__ MmaAttention p) {
  using S = Shape<kWidth, kOperand, kDropout>;
  using Tile = typename S::Tile;
  using Element = typename S::Element;
  constexpr int kColumns = 32;
  WEFT_DYNAMIC_SHARED(Element, shared);
  Element* const tile_k = shared;
  Element* const tile_v = tile_k + S::kTileElements;
  Element* const stages = tile_v + S::kTileElements;
  auto* const rows = reinterpret_cast<float*>(stages + 2 * S::kStages * S::kStepElements);
  const BlockPlace at(p.heads, p.keys, kTile, false);
  const Element* const queries = p.q.of<Element>(at.b, at.h);
  const Element* const douts = p.dout.of<Element>(at.b, at.h);
  const int64_t pair_row = static_cast<int64_t>(at.pair) * p.queries;
  // Under a causal mask no query before this tile sees a key of it.
  const int step0 = p.causal ? min(at.first, p.queries) / S::kStep : 0;
  const int steps = tiles_of(p.queries, S::kStep);
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16, first_row = at.first + warp_row;
  const auto tile_q = [&](int step) { return stages + step % S::kStages * 2 * S::kStepElements; };
  const auto tile_dout = [&](int step) { return tile_q(step) + S::kStepElements; };
  const auto row_lse = [&](int step) { return rows + step % S::kStages * 2 * S::kStep; };
  const auto row_delta = [&](int step) { return row_lse(step) + S::kStep; };
  const auto load = [&](int step) {
    if (step < steps) {
      constexpr int kStep = S::kStep;
      const int first = step * kStep;
      Tile::load(tile_q(step), kStep, queries, p.q.token, first, p.queries, p.width, kThreads);
      Tile::load(tile_dout(step), kStep, douts, p.dout.token, first, p.queries, p.width, kThreads);
      static_assert(kThreads >= 2 * kStep);
      const int i = static_cast<int>(threadIdx.x) % kStep;
      const bool is_delta = threadIdx.x >= kStep, is_inside = first + i < p.queries;
      const float* const from = is_delta ? p.delta : p.lse;
      if (threadIdx.x < 2 * kStep) {
        cp_async<4>((is_delta ? row_delta(step) : row_lse(step)) + i,
                    from + pair_row + (is_inside ? first + i : 0), is_inside ? 4 : 0);
      }
    }
    cp_async_commit();
  };
  Tile::load(tile_k, kTile, p.k.of<Element>(at.b, at.h), p.k.token, at.first, p.keys, p.width,
             kThreads);
  Tile::load(tile_v, kTile, p.v.of<Element>(at.b, at.h), p.v.token, at.first, p.keys, p.width,
             kThreads);
  for (int step = step0; step < step0 + S::kStages - 1; ++step) load(step);

  KeyGradients<kWidth, kOperand, kDropout, 1, kColumns> sums(p, at.pair, tile_k, tile_v, warp_row,
                                                             first_row);
  for (int step = step0; step < steps; ++step) {
    cp_async_wait<S::kStages - 2>();
    __syncthreads();
    load(step + S::kStages - 1);
    if (first_row >= p.keys) continue;
#pragma unroll 1
    for (int column = 0; column < S::kStep; column += kColumns) {
      const int first_query = step * S::kStep + column;
      if (first_query >= p.queries || sums.is_hidden(first_query)) continue;
      sums.add(tile_q(step), tile_dout(step), row_lse(step), row_delta(step), column, first_query);
    }
  }
  cp_async_wait<0>();
  __syncthreads();
  if (first_row < p.keys) sums.store(tile_k, tile_v, at.b, at.h);
}

}  // namespace

void attention_cuda_flash(const AttentionProblem& problem) {
  MmaAttention p(problem);
  const auto pairs = static_cast<int>(problem.q.size(0) * problem.q.size(1));
  const runtime::StreamHandle stream = current_stream_handle(problem.device());
  const Tensor delta = problem.backward()
                           ? Tensor::empty(problem.lse.shape(), DType::f32, problem.device())
                           : Tensor();
  if (pairs == 0 || p.width == 0) return;
  with_instance(problem, [&](auto width, auto operand, auto has_dropout) {
    constexpr int kWidth = width();
    constexpr MmaOperand kOperand = operand();
    constexpr bool kDropout = has_dropout();
    using S = Shape<kWidth, kOperand, kDropout>;
    const auto blocks = [&](int tokens, int tile) {
      return static_cast<unsigned>(pairs * tiles_of(tokens, tile));
    };
    if (!problem.backward()) {
      if (p.queries == 0) return;
      WEFT_LAUNCH((attention_flash_kernel<kWidth, kOperand, kDropout>),
                  blocks(p.queries, S::kQueries), kThreads, S::kForwardBytes, stream, p);
      return;
    }
    p.delta = delta.data<float>();
    launch_delta<kWidth, kOperand>(p, pairs, stream);
    if (p.queries > 0) {
      WEFT_LAUNCH((attention_flash_dq_kernel<kWidth, kOperand, kDropout>), blocks(p.queries, kTile),
                  kThreads, S::kBackwardBytes, stream, p);
    }
    if (p.keys > 0) {
      WEFT_LAUNCH((attention_flash_dkv_kernel<kWidth, kOperand, kDropout>), blocks(p.keys, kTile),
                  kThreads, S::kBackwardBytes + S::kRowBytes, stream, p);
    }
  });
}

}  // namespace weft::kernels
