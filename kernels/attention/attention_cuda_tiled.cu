// Attention of any length in plain f32 arithmetic: tiles of 32 tokens in shared memory, widened to
// f32 as they are read, with the running maximum and sum of an online softmax (Milakov and
// Gimelshein, 2018). For f32 heads, which tensor cores would round, and for 16-bit ones whose
// layout or numerics the tensor-core kernels do not take.
//
// A block of 4 warps owns 32 queries of a head (dk and dv: 32 keys), a warp 8 of them. A lane
// computes the scores of the warp's 8 rows with one token of the tile: it reads its own row of the
// tile four elements at a time, and the warp's rows by broadcast, 9 loads for 32 multiply-adds;
// rows lie 4 elements further apart than they are long, so that 8 lanes meet all banks. Then a lane
// owns every 32nd column of the 8 rows' sums, and the weights come back by broadcast. Limited by
// shared memory, at about two thirds of the multiply-add rate.
//
//   hazard                                          what orders it
//   a tile is read before it is complete            the barrier after its load
//   a tile is overwritten while a warp reads it     the barrier before the next load
//   weights are read before their lanes wrote them  __syncwarp: they are their warp's own
//   weights are overwritten while a lane reads them the barriers of the next tile
#include "kernels/attention/attention_cuda.cuh"

namespace weft::kernels {
namespace {

constexpr int kWarps = 4, kRows = 8, kThreads = kWarps * kWarp;
constexpr int kTile = kWarps * kRows;
static_assert(kTile == kWarp);  // a lane to each token

using Four = Pack<float, 4>;

/// What a block works on: tokens first.. of head h of batch b; of those, a warp's rows.
struct Place {
  int64_t b, h, first;
  int lane, row;

  __device__ Place(const AttentionArguments& p, int64_t tokens)
      : lane(static_cast<int>(threadIdx.x) % kWarp),
        row(static_cast<int>(threadIdx.x) / kWarp * kRows) {
    const int64_t blocks = (tokens + kTile - 1) / kTile, pair = blockIdx.x / blocks;
    first = blockIdx.x % blocks * kTile;
    b = pair / p.heads;
    h = pair % p.heads;
  }
};

/// Dropout's factors of elements n, n + step, ...: those of a lane's scores.
struct KeptRows {
  uint32_t bits = ~0u;
  float factor = 1;

  __device__ KeptRows(const AttentionArguments& p, uint64_t n, uint64_t step) {
    if (p.dropout == 0) return;
    bits = 0;
#pragma unroll 1  // eight generators at once would not fit the registers
    for (int r = 0; r < kRows; ++r) bits |= p.keeps(n + r * step) ? 1u << r : 0u;
    factor = static_cast<float>(p.kept_factor);
  }
  __device__ float operator[](int r) const { return (bits >> r & 1) == 0 ? 0.0f : factor; }
};

/// 32 tokens by kWidth elements; what lies outside the head is 0.
template <int kWidth>
struct Tile {
  static constexpr int kStride = kWidth + 4, kElements = kTile * kStride;

  static __device__ void load(const AttentionArguments& p, float* tile, const Heads& from,
                              const Place& at, int64_t first, int64_t tokens) {
    for (int e = static_cast<int>(threadIdx.x); e < kTile * kWidth; e += kThreads) {
      const int row = e / kWidth, column = e % kWidth;
      const bool is_inside = first + row < tokens && column < p.width;
      tile[row * kStride + column] =
          is_inside ? p.factor(from.at<float>(at.b, at.h, first + row, column)) : 0.0f;
    }
  }

  /// products[r] = row r of `rows` times token `lane` of the tile.
  static __device__ void multiply(float (&products)[kRows], const float* rows, const float* tile,
                                  int lane) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) products[r] = 0;
    for (int d = 0; d < kWidth; d += 4) {
      const Four own = *reinterpret_cast<const Four*>(tile + lane * kStride + d);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const Four row = *reinterpret_cast<const Four*>(rows + r * kStride + d);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          products[r] = std::fma(row.values[i], own.values[i], products[r]);
        }
      }
    }
  }

  /// sums[r][c] += sum over the tile's tokens of weights[r][token] times column lane + 32 c.
  static __device__ void accumulate(float (&sums)[kRows][kWidth / kWarp], const float* weights,
                                    const float* tile, int lane) {
    for (int token = 0; token < kTile; token += 4) {
      Four weight[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        weight[r] = *reinterpret_cast<const Four*>(weights + r * kTile + token);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int c = 0; c < kWidth / kWarp; ++c) {
          const float x = tile[(token + i) * kStride + lane + kWarp * c];
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            sums[r][c] = std::fma(weight[r].values[i], x, sums[r][c]);
          }
        }
      }
    }
  }

  /// The warp's rows of a head, each times factor(r).
  template <class F>
  static __device__ void store(const float (&sums)[kRows][kWidth / kWarp], const Heads& to,
                               const Place& at, int64_t tokens, int64_t width, F factor) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t token = at.first + at.row + r;
#pragma unroll
      for (int c = 0; c < kWidth / kWarp; ++c) {
        const int64_t column = at.lane + kWarp * c;
        if (token < tokens && column < width) {
          to.put(at.b, at.h, token, column, sums[r][c] * factor(r));
        }
      }
    }
  }
};

template <int kWidth>
__global__ void __launch_bounds__(kThreads, 2)
    attention_tiled_kernel(const __grid_constant__ AttentionArguments p) {
  using T = Tile<kWidth>;
  WEFT_DYNAMIC_SHARED(float, shared);
  const Place at(p, p.queries);
  float* const tile_q = shared;
  float* const tile_k = tile_q + T::kElements;
  float* const tile_v = tile_k + T::kElements;
  float* const weights = tile_v + T::kElements + at.row * kTile;  // (8, 32), the warp's own
  T::load(p, tile_q, p.q, at, at.first, p.queries);
  const auto scale = static_cast<float>(p.scale);
  const int64_t first_row = at.first + at.row;
  const int64_t seen = p.causal ? min(p.keys, at.first + kTile) : p.keys;
  float out[kRows][kWidth / kWarp] = {}, max[kRows], sum[kRows] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) max[r] = -INFINITY;
  for (int64_t key0 = 0; key0 < seen; key0 += kTile) {
    __syncthreads();
    T::load(p, tile_k, p.k, at, key0, p.keys);
    T::load(p, tile_v, p.v, at, key0, p.keys);
    __syncthreads();
    if (first_row >= p.queries || (p.causal && key0 >= first_row + kRows)) continue;
    float scores[kRows];
    T::multiply(scores, tile_q + at.row * T::kStride, tile_k, at.lane);
    const int64_t key = key0 + at.lane;
    const KeptRows kept(p, p.row(at.b, at.h, first_row) * p.keys + key, p.keys);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool is_seen = key < p.keys && p.sees(first_row + r, key);
      const float score = is_seen ? scores[r] * scale : -INFINITY;
      // A NaN is left to the sum.
      const float new_max = std::fmax(max[r], warp_max(score));
      const float shrink = new_max == max[r] ? 1.0f : std::exp(max[r] - new_max);
      const float e = is_seen ? std::exp(score - new_max) : 0.0f;
      max[r] = new_max;
      sum[r] = sum[r] * shrink + e;
#pragma unroll
      for (int c = 0; c < kWidth / kWarp; ++c) out[r][c] *= shrink;
      weights[r * kTile + at.lane] = p.factor(e * kept[r]);
    }
    __syncwarp();
    T::accumulate(out, weights, tile_v, at.lane);
  }
  if (first_row >= p.queries) return;
  float factors[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float total = warp_sum(sum[r]);
    factors[r] = p.keys == 0 ? 0 : 1 / total;
    if (at.lane == 0 && first_row + r < p.queries) {
      store_one(p.lse, p.row(at.b, at.h, first_row + r), max[r] + std::log(total));
    }
  }
  T::store(out, p.out, at, p.queries, p.width, [&](int r) { return factors[r]; });
}

/// delta: a warp to each query.
__global__ void __launch_bounds__(kThreads, 2)
    attention_tiled_delta_kernel(const __grid_constant__ AttentionArguments p) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= p.batches * p.heads * p.queries) return;
  const int64_t query = row % p.queries, pair = row / p.queries;
  const int64_t b = pair / p.heads, h = pair % p.heads;
  float sum = 0;
  for (int64_t d = lane; d < p.width; d += kWarp) {
    sum = std::fma(p.dout.at<float>(b, h, query, d), p.out.at<float>(b, h, query, d), sum);
  }
  sum = warp_sum(sum);
  if (lane == 0) store_one(p.delta, row, sum);
}

/// dq of a block's queries, or dk and dv of its keys, which walks over the others. Rows of the
/// scores are the block's own tokens: of keys they are transposed.
template <int kWidth, bool kOfKeys>
__global__ void __launch_bounds__(kThreads, 2)
    attention_tiled_backward_kernel(const __grid_constant__ AttentionArguments p) {
  using T = Tile<kWidth>;
  WEFT_DYNAMIC_SHARED(float, shared);
  const int64_t tokens = kOfKeys ? p.keys : p.queries, others = kOfKeys ? p.queries : p.keys;
  const Place at(p, tokens);
  // qk: q of queries, k of keys; vd: dout of queries, v of keys.
  float* const own_qk = shared;
  float* const own_vd = own_qk + T::kElements;
  float* const other_qk = own_vd + T::kElements;
  float* const other_vd = other_qk + T::kElements;
  float* const weights_ds = other_vd + T::kElements + at.row * kTile;
  float* const weights_p = weights_ds + kTile * kTile;  // of keys
  T::load(p, own_qk, kOfKeys ? p.k : p.q, at, at.first, tokens);
  T::load(p, own_vd, kOfKeys ? p.v : p.dout, at, at.first, tokens);
  const int64_t first_row = at.first + at.row;
  const auto scale = static_cast<float>(p.scale);
  // Under a causal mask a key is seen by no query before it.
  const int64_t begin = kOfKeys && p.causal ? at.first : 0;
  const int64_t end = !kOfKeys && p.causal ? min(others, at.first + kTile) : others;
  float dqk[kRows][kWidth / kWarp] = {}, dv[kRows][kWidth / kWarp] = {};
  for (int64_t first = begin; first < end; first += kTile) {
    __syncthreads();
    T::load(p, other_qk, kOfKeys ? p.q : p.k, at, first, others);
    T::load(p, other_vd, kOfKeys ? p.dout : p.v, at, first, others);
    __syncthreads();
    if (first_row >= tokens || (!kOfKeys && p.causal && first >= first_row + kRows)) continue;
    float scores[kRows], dp[kRows];
    T::multiply(scores, own_qk + at.row * T::kStride, other_qk, at.lane);
    T::multiply(dp, own_vd + at.row * T::kStride, other_vd, at.lane);
    const int64_t other = first + at.lane;
    const int64_t first_query = kOfKeys ? min(other, p.queries - 1) : first_row;
    const int64_t query_row = p.row(at.b, at.h, first_query);
    const KeptRows kept(p, query_row * p.keys + (kOfKeys ? first_row : other),
                        kOfKeys ? 1 : p.keys);
    float lse = 0, delta = 0;
    if (kOfKeys) {  // all rows have the lane's query
      lse = load_one<float>(p.lse, query_row);
      delta = load_one<float>(p.delta, query_row);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t query = kOfKeys ? other : first_row + r, key = kOfKeys ? first_row + r : other;
      float dropped = 0, ds = 0;
      if (query < p.queries && key < p.keys && p.sees(query, key)) {
        if (!kOfKeys) {
          lse = load_one<float>(p.lse, query_row + r);
          delta = load_one<float>(p.delta, query_row + r);
        }
        const float probability = std::exp(scores[r] * scale - lse);
        dropped = probability * kept[r];
        ds = probability == 0 ? 0 : probability * (dp[r] * kept[r] - delta);
      }
      weights_ds[r * kTile + at.lane] = p.factor(ds);
      if (kOfKeys) weights_p[r * kTile + at.lane] = p.factor(dropped);
    }
    __syncwarp();
    T::accumulate(dqk, weights_ds, other_qk, at.lane);
    if (kOfKeys) T::accumulate(dv, weights_p, other_vd, at.lane);
  }
  if (first_row >= tokens) return;
  T::store(dqk, kOfKeys ? p.dk : p.dq, at, tokens, p.width, [&](int) { return scale; });
  if (kOfKeys) T::store(dv, p.dv, at, tokens, p.width, [](int) { return 1.0f; });
}

template <int kWidth>
void run(const AttentionArguments& p, bool backward, runtime::StreamHandle stream) {
  const auto launch = [&](auto kernel, int64_t tokens, int tiles, int weights) {
    const int64_t blocks = p.batches * p.heads * ((tokens + kTile - 1) / kTile);
    if (blocks == 0) return;
    const size_t elements = tiles * Tile<kWidth>::kElements + weights * kTile * kTile;
    WEFT_LAUNCH(kernel, static_cast<unsigned>(blocks), kThreads, elements * sizeof(float), stream,
                p);
  };
  if (!backward) return launch(attention_tiled_kernel<kWidth>, p.queries, 3, 1);
  const int64_t rows = p.batches * p.heads * p.queries;
  if (rows > 0) {
    WEFT_LAUNCH(attention_tiled_delta_kernel, static_cast<unsigned>((rows + kWarps - 1) / kWarps),
                kThreads, 0, stream, p);
  }
  launch(attention_tiled_backward_kernel<kWidth, false>, p.queries, 4, 1);
  launch(attention_tiled_backward_kernel<kWidth, true>, p.keys, 4, 2);
}

}  // namespace

void attention_cuda_tiled(const AttentionProblem& problem) {
  const Tensor delta = attention_delta(problem);
  const AttentionArguments p(problem, delta);
  const runtime::StreamHandle stream = current_stream_handle(problem.device());
  if (p.width <= 32) return run<32>(p, problem.backward(), stream);
  if (p.width <= 64) return run<64>(p, problem.backward(), stream);
  run<128>(p, problem.backward(), stream);
}

}  // namespace weft::kernels
