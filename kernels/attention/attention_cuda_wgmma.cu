// Hopper's attention: wgmma on tiles that TMA brings, in a persistent, warp-specialised kernel
// (sm_90a), after Shah et al., "FlashAttention-3" (2024). Of 16-bit heads.
//
// A block of three warpgroups walks over tiles of 128 queries of a head. One thread of the first,
// the producer, has TMA bring the queries, and kKeys keys and values at a time into a ring of two
// stages. The two others, the consumers, own 64 queries each: Q and K are read from shared memory,
// the scores stay in registers and, rounded, are the left operand of the product with V. A row's
// maximum may grow with each step: then its sum and its output are rescaled.
//
// Tensor cores and exponentials would take about the same time. So the consumers take turns to
// issue products, the scores of a step and the values of the last one, and each one's softmax runs
// under the products of the other, and under its own product with the values.
//
//   barrier            counts                     says
//   full_q, _k, _v[s]  the producer's             the bytes have come
//                      announcement, the bytes
//   empty_k, _v[s]     one thread per consumer    its products have read the stage
//   empty_q[s]         one thread per consumer    the output that took the queries' place is stored
//   turn of a          its threads, and the       it may issue
//   consumer           other's once they have
//
// Heads have kWidth columns or fewer: TMA fills up with zeros, which it does not store. Wide heads
// take fewer keys at a time, for their output's registers. Where all keys would fill little of the
// second tile of 128, heads of up to 64 columns take 208 at a time, as many as ViT's 197 round up
// to.
#include "kernels/attention/attention_wgmma.cuh"
#include "kernels/device/instances.h"
#include "kernels/device/warpgroup.cuh"

namespace weft::kernels {
namespace {

using namespace ptx;
using namespace wgmma_attention;

constexpr int kQueries = kConsumers * kRows;
/// Registers of a thread once the producer has given up most of its own: 24 + 2 x 240 of 504.
constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
constexpr int kStages = 2;

/// A tile of tokens is kBoxes boxes of lines, one after the other.
template <int kWidth, int kKeys>
struct Shape {
  static constexpr int kBoxes = boxes_of(kWidth);
  static constexpr int kQueryStages = kWidth > 128 ? 1 : 2;
  static constexpr int kRowsBytes = kBoxes * kAtom;  // of a consumer's queries
  static constexpr int kQueryBytes = kConsumers * kRowsBytes;
  static constexpr int kBoxBytes = kKeys * kLine;
  static constexpr int kKeyBytes = kBoxes * kBoxBytes;  // of a step's keys, or its values
  static constexpr size_t kSharedBytes =
      size_t{kQueryStages} * kQueryBytes + size_t{kStages} * 2 * kKeyBytes;
  static_assert(kBoxBytes % 1024 == 0 && kKeys % 16 == 0 && kWidth % 16 == 0);
};

struct ForwardArguments : Arguments {
  int blocks;  // tiles of a head

  explicit ForwardArguments(const AttentionProblem& p)
      : Arguments(p, Tensor()), blocks((queries + kQueries - 1) / kQueries) {}
  __host__ __device__ int tiles() const { return pairs * blocks; }
};

/// A tile of queries and the steps along its keys. Tiles that share keys are neighbours; but under
/// a causal mask the last queries see the most keys, and those tiles of all heads come first.
struct Tile {
  Pair pair;
  int first, steps;

  __device__ __forceinline__ Tile(const ForwardArguments& p, int index, int keys_of_step)
      : pair(p.causal ? index % p.pairs : index / p.blocks, p.heads) {
    first = kQueries * (p.causal ? p.blocks - 1 - index / p.pairs : index % p.blocks);
    steps = (p.last_key(first + kQueries - 1) + keys_of_step) / keys_of_step;
  }
};

/// The barriers of a block.
template <int kQueryStages>
struct Barriers {
  uint64_t full_q[kQueryStages], empty_q[kQueryStages];
  uint64_t full_k[kStages], empty_k[kStages], full_v[kStages], empty_v[kStages];

  __device__ __forceinline__ void start() {
    if (threadIdx.x == 0) {
      for (int s = 0; s < kQueryStages; ++s) {
        mbarrier_init(&full_q[s], 1);
        mbarrier_init(&empty_q[s], kConsumers);
      }
      for (int s = 0; s < kStages; ++s) {
        mbarrier_init(&full_k[s], 1);
        mbarrier_init(&full_v[s], 1);
        mbarrier_init(&empty_k[s], kConsumers);
        mbarrier_init(&empty_v[s], kConsumers);
      }
      fence_mbarrier_init();
    }
    __syncthreads();
  }
};

/// The producer's part, one thread's.
template <int kWidth, int kKeys, class B>
__device__ __forceinline__ void produce(const ForwardArguments& p, char* queries, char* keys,
                                        char* values, B& barriers, const TensorMap& map_q,
                                        const TensorMap& map_k, const TensorMap& map_v) {
  using S = Shape<kWidth, kKeys>;
  Ring<S::kQueryStages> of_queries;
  Ring<kStages> ring;
  // A stage of keys or values, once the consumers have read what it holds.
  const auto load = [&](char* tiles, uint64_t* full, uint64_t* empty, const TensorMap& map,
                        int first, int head, int batch) {
    char* const tile = tiles + ring.stage * S::kKeyBytes;
    mbarrier_wait(&empty[ring.stage], ring.parity ^ 1);
    mbarrier_arrive_expect_tx(&full[ring.stage], S::kKeyBytes);
    load_boxes<S::kBoxes>(tile, S::kBoxBytes, map, &full[ring.stage], first, head, batch);
  };
  for (int t = static_cast<int>(blockIdx.x); t < p.tiles(); t += static_cast<int>(gridDim.x)) {
    const Tile tile(p, t, kKeys);
    const int s = of_queries.stage;
    mbarrier_wait(&barriers.empty_q[s], of_queries.parity ^ 1);
    mbarrier_arrive_expect_tx(&barriers.full_q[s], S::kQueryBytes);
    for (int consumer = 0; consumer < kConsumers; ++consumer) {
      load_boxes<S::kBoxes>(queries + s * S::kQueryBytes + consumer * S::kRowsBytes, kAtom, map_q,
                            &barriers.full_q[s], tile.first + consumer * kRows, tile.pair.h,
                            tile.pair.b);
    }
    of_queries.advance();
    const int head = tile.pair.h / p.sharing;
    for (int step = 0; step < tile.steps; ++step, ring.advance()) {
      load(keys, barriers.full_k, barriers.empty_k, map_k, step * kKeys, head, tile.pair.b);
      load(values, barriers.full_v, barriers.empty_v, map_v, step * kKeys, head, tile.pair.b);
    }
  }
}

/// A thread's part of a consumer's softmax: rows g and g + 8 of its warp.
template <int kKeys, bool kMasked, bool kDropout>
struct Softmax {
  const ForwardArguments& p;
  const Pair pair;
  const int block_query;  // the consumer's first
  const float scale;      // of the scores, whose exponentials are powers of 2
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {};  // the maximum times scale; this lane's sum
  float shrink[2];  // what a step's new maximum makes of earlier sums

  __device__ __forceinline__ Softmax(const ForwardArguments& p, const Tile& tile, int consumer)
      : p(p),
        pair(tile.pair),
        block_query(tile.first + consumer * kRows),
        scale(kMasked ? 1 : p.scale * kLog2E) {}

  /// The thread's first query. Computed where it is needed, like its first key from a step's on:
  /// there are no registers to keep it in.
  __device__ __forceinline__ int query() const {
    return warp_query() + reread_thread() % kWarp / 4;
  }

  /// Scores of the keys from key0 on become their exponentials, and 0 where dropout drops them.
  __device__ __forceinline__ void add(float (&scores)[kKeys / 2], int key0) {
    if constexpr (kMasked) {
      p.mask.with_element([&](auto element) { mask<decltype(element)>(scores, key0); });
    }
    const bool is_partial = key0 + kKeys > p.keys || (p.causal && key0 + kKeys - 1 > block_query);
    if (is_partial) hide(scores, key0);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float step_max = -INFINITY;
#pragma unroll
      for (int i = 2 * r; i < kKeys / 2; i += 4) {
        step_max = std::fmax(std::fmax(step_max, scores[i]), scores[i + 1]);
      }
      const float new_max = std::fmax(max[r], quad_max(step_max) * scale);
      // A row that has seen no key yet stays at zeros.
      const float shift = new_max == -INFINITY ? 0 : new_max;
      shrink[r] = ex2_approx(max[r] - shift);
      max[r] = new_max;
      float step_sum = 0;
#pragma unroll
      for (int i = 2 * r; i < kKeys / 2; i += 4) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          scores[i + e] = ex2_approx(std::fma(scores[i + e], scale, -shift));
          step_sum += scores[i + e];
        }
      }
      sum[r] = sum[r] * shrink[r] + step_sum;
    }
    if constexpr (kDropout) drop(scores, key0);
  }

 private:
  __device__ __forceinline__ int warp_query() const {
    return block_query + reread_thread() / kWarp * 16;
  }
  __device__ __forceinline__ int first_key() const { return 2 * (reread_thread() % 4); }
  /// Queries and keys beyond the last take the last one's: their scores are hidden, or not stored.
  template <class T>
  __device__ __forceinline__ void mask(float (&scores)[kKeys / 2], int key0) const {
    const int query = this->query(), first_key = this->first_key();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const char* const row =
          p.mask.of(pair) + int64_t{min(query + 8 * r, p.queries - 1)} * p.mask.query;
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) {
        const int key = min(key0 + first_key + 8 * (i / 2) + i % 2, p.keys - 1);
        float& score = scores[4 * (i / 2) + 2 * r + i % 2];
        const char* const at = row + int64_t{key} * p.mask.key;
        score = masked(score, p.scale * kLog2E, *reinterpret_cast<const T*>(at));
      }
    }
  }
  __device__ __forceinline__ void hide(float (&scores)[kKeys / 2], int key0) const {
    const int query = this->query(), first_key = this->first_key();
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      const int key = key0 + first_key + 8 * (i / 4) + i % 2, row = query + 8 * (i / 2 % 2);
      if (key > p.last_key(row)) scores[i] = -INFINITY;
    }
  }
  __device__ __forceinline__ void drop(float (&scores)[kKeys / 2], int key0) const {
    static_assert(kKeys % 64 == 0);
#pragma unroll
    for (int first = 0; first < kKeys; first += 64) {
      const uint32_t kept = p.kept_scores<8>(pair, warp_query(), key0 + first);
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        if ((kept >> i & 1) == 0) scores[first / 2 + i] = 0;
      }
    }
  }
};

/// Issues scores = Q K^T, of a consumer's queries and a step's keys.
template <class Type, int kWidth, int kKeys>
__device__ __forceinline__ void multiply_keys(float (&scores)[kKeys / 2], const char* queries,
                                              const char* keys) {
  const uint64_t of_queries = wgmma_descriptor_k_major(queries);
  const uint64_t of_keys = wgmma_descriptor_k_major(keys);
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    const int box = k / 4, bytes = k % 4 * 32;
    wgmma<Type, kKeys>(
        scores, wgmma_descriptor_behind(of_queries, box * kAtom + bytes),
        wgmma_descriptor_behind(of_keys, box * Shape<kWidth, kKeys>::kBoxBytes + bytes), k > 0);
  }
  wgmma_commit();
}

/// Issues out = weights V + (accumulate ? out : 0).
template <class Type, int kWidth, int kKeys>
__device__ __forceinline__ void multiply_values(float (&out)[kWidth / 2],
                                                const uint32_t (&weights)[kKeys / 16][4],
                                                const char* values, bool accumulate) {
  const uint64_t of_values = wgmma_descriptor_mn_major(values, Shape<kWidth, kKeys>::kBoxBytes);
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) {
    wgmma_of_registers<Type, kWidth, Major::kMn>(
        out, weights[k], wgmma_descriptor_behind(of_values, k * 16 * kLine), accumulate || k > 0);
  }
  wgmma_commit();
}

template <class Type, int kWidth, int kKeys, bool kMasked, bool kDropout>
__global__ void __launch_bounds__(kThreads, 1)
    attention_wgmma_kernel(const __grid_constant__ ForwardArguments p,
                           const __grid_constant__ TensorMap map_q,
                           const __grid_constant__ TensorMap map_k,
                           const __grid_constant__ TensorMap map_v,
                           const __grid_constant__ TensorMap map_out) {
  using S = Shape<kWidth, kKeys>;
  WEFT_DYNAMIC_SHARED(char, tiles_q);
  WEFT_SHARED(Barriers<S::kQueryStages>, barriers);
  char* const tiles_k = tiles_q + S::kQueryStages * S::kQueryBytes;
  char* const tiles_v = tiles_k + kStages * S::kKeyBytes;
  barriers.start();
  const int warpgroup = uniform_warpgroup();
  if (warpgroup == 0) {
    setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x == 0) {
      produce<kWidth, kKeys>(p, tiles_q, tiles_k, tiles_v, barriers, map_q, map_k, map_v);
    }
    return;
  }

  setmaxnreg_inc<kConsumerRegisters>();
  const int consumer = warpgroup - 1;
  // Barrier 1 + c is consumer c's own, 3 + c its turn.
  const auto take_turn = [=] { named_barrier_sync(1 + kConsumers + consumer, kBothThreads); };
  const auto give_turn = [=] {
    named_barrier_arrive(1 + kConsumers + (consumer ^ 1), kBothThreads);
  };
  const auto arrive = [=](uint64_t* barrier) {
    if (reread_thread() == 0) mbarrier_arrive(barrier);
  };
  if (consumer == 1) give_turn();

  Ring<S::kQueryStages> of_queries;
  Ring<kStages> ring;
  float scores[kKeys / 2], out[kWidth / 2];
  uint32_t weights[kKeys / 16][4];
  for (int t = static_cast<int>(blockIdx.x); t < p.tiles();
       t += static_cast<int>(gridDim.x), of_queries.advance(), ring.advance()) {
    const Tile tile(p, t, kKeys);
    char* const queries = tiles_q + of_queries.stage * S::kQueryBytes + consumer * S::kRowsBytes;
    Softmax<kKeys, kMasked, kDropout> softmax(p, tile, consumer);
    mbarrier_wait(&barriers.full_q[of_queries.stage], of_queries.parity);
    mbarrier_wait(&barriers.full_k[ring.stage], ring.parity);
    take_turn();
    wgmma_fence();
    multiply_keys<Type, kWidth, kKeys>(scores, queries, tiles_k + ring.stage * S::kKeyBytes);
    give_turn();
    wgmma_wait<0>();
    arrive(&barriers.empty_k[ring.stage]);
    softmax.add(scores, 0);
    round_scores<Type>(weights, scores);
    for (int step = 1; step < tile.steps; ++step) {
      const Ring<kStages> last = ring;
      ring.advance();
      mbarrier_wait(&barriers.full_k[ring.stage], ring.parity);
      mbarrier_wait(&barriers.full_v[last.stage], last.parity);
      take_turn();
      wgmma_fence();
      multiply_keys<Type, kWidth, kKeys>(scores, queries, tiles_k + ring.stage * S::kKeyBytes);
      multiply_values<Type, kWidth, kKeys>(out, weights, tiles_v + last.stage * S::kKeyBytes,
                                           step > 1);
      give_turn();
      wgmma_wait<1>();
      arrive(&barriers.empty_k[ring.stage]);
      softmax.add(scores, step * kKeys);
      wgmma_wait<0>();
      arrive(&barriers.empty_v[last.stage]);
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) out[i] *= softmax.shrink[i / 2 % 2];
      round_scores<Type>(weights, scores);
    }
    mbarrier_wait(&barriers.full_v[ring.stage], ring.parity);
    take_turn();
    wgmma_fence();
    multiply_values<Type, kWidth, kKeys>(out, weights, tiles_v + ring.stage * S::kKeyBytes,
                                         tile.steps > 1);
    give_turn();
    float factors[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      factors[r] = p.finish_query<kDropout>(tile.pair, softmax.query() + 8 * r, softmax.max[r],
                                            softmax.sum[r]);
    }
    wgmma_wait<0>();
    arrive(&barriers.empty_v[ring.stage]);

    round_into_boxes<Narrow<Type>, kWidth>(
        queries, out, [&](int) { return [&](int h, int, float x) { return x * factors[h]; }; });
    fence_proxy_async();
    named_barrier_sync(1 + consumer, kWarpgroupThreads);
    if (reread_thread() == 0) {
      store_boxes<S::kBoxes>(map_out, queries, kAtom, softmax.block_query, tile.pair.h,
                             tile.pair.b);
      tma_store_commit();
      tma_store_wait_read<0>();
      mbarrier_arrive(&barriers.empty_q[of_queries.stage]);
    }
  }
  if (consumer == 0) take_turn();  // the last one that was given
}

template <class Type, int kWidth, int kKeys, bool kMasked, bool kDropout>
void launch_forward(const AttentionProblem& problem) {
  const ForwardArguments p(problem);
  WEFT_LAUNCH((attention_wgmma_kernel<Type, kWidth, kKeys, kMasked, kDropout>),
              blocks_for(p.tiles(), problem.device()), kThreads,
              (Shape<kWidth, kKeys>::kSharedBytes), current_stream_handle(problem.device()), p,
              heads_map(problem.q, kRows), heads_map(problem.k, kKeys), heads_map(problem.v, kKeys),
              heads_map(problem.out, kRows));
}

template <class Type, bool kMasked, bool kDropout>
void forward(const AttentionProblem& p) {
  constexpr bool kIsPlain = !kMasked && !kDropout;
  const int64_t width = p.q.size(3), keys = p.k.size(2);
  if (width <= 64) {
    const auto rounded = [=](int64_t step) { return (keys + step - 1) / step * step; };
    if constexpr (kIsPlain) {
      if (!p.causal && rounded(208) < rounded(128)) {
        return launch_forward<Type, 64, 208, kMasked, kDropout>(p);
      }
    }
    return launch_forward<Type, 64, 128, kMasked, kDropout>(p);
  }
  if (width <= 80) return launch_forward<Type, 80, 128, kMasked, kDropout>(p);
  if (width <= 96) return launch_forward<Type, 96, 128, kMasked, kDropout>(p);
  // A mask's addresses take registers, too, and dropout draws for 64 keys at a time.
  if (width <= 128) return launch_forward < Type, 128, kMasked ? 64 : 128, kMasked, kDropout > (p);
  launch_forward<Type, 256, kIsPlain ? 80 : 64, kMasked, kDropout>(p);
}

}  // namespace

void attention_cuda_wgmma(const AttentionProblem& problem) {
  with_flags(
      [&](auto is_bf16, auto is_masked, auto has_dropout) {
        forward<std::conditional_t<is_bf16(), Bf16, F16>, is_masked(), has_dropout()>(problem);
      },
      problem.dtype() == DType::bf16, problem.mask.defined(), problem.dropout > 0);
}

}  // namespace weft::kernels
