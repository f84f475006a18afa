// Hopper's gradients of attention over many keys: one pass, five products, on wgmma and TMA in a
// persistent, warp-specialised kernel (sm_90a). Of 16-bit heads of up to 128 columns.
//
// A block of three warpgroups owns blocks of 128 keys of a head, one after the other. The first
// warp, the producer, brings them, and chunks of queries with dout, lse and delta into a ring of
// two stages. The two others, the consumers, own 64 keys each:
//
//   P^T = exp(K Q^T - lse), dS^T = P^T (V dout^T - delta)    64 queries at a time, in registers
//   dv += P^T dout, dk += dS^T Q                             left operands from registers
//   dq += dS K                                               dS by way of shared memory
//
// dk and dv stay in registers. A chunk's dq needs all keys: the consumers share it out, by queries
// or, of heads of more than 64 columns, whose chunks are half as long, by columns. It is added up
// in f32 in memory, by the same thread for each block of keys, so that the order is one: no
// atomics. Where heads are too few to fill a GPU, several blocks own parts of a head's keys and
// have sums of their own, which the last kernel adds in order.
//
//   barrier          counts                           says
//   full_keys        the producer's announcement,     a block of keys and values has come
//                    the bytes
//   empty_keys       one thread per consumer          dk and dv, which took their place, are stored
//   full[s]          the same announcement, the       queries, dout, lse and delta have come
//                    bytes, the copies of 32 lanes
//   empty[s]         one thread per consumer          its products have read the stage
//   both consumers'  their threads                    dS is complete; with two buffers for it, the
//                                                     last but one's has been read, too
#include "kernels/attention/attention_wgmma.cuh"
#include "kernels/device/warpgroup.cuh"

namespace weft::kernels {
namespace {

using namespace ptx;
using namespace wgmma_attention;

constexpr int kKeys = kConsumers * kRows;
constexpr int kKeyBox = kKeys * kLine;  // bytes
/// Registers of a thread after the producer has given up some of its own: 40 + 2 x 232 of 504.
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
constexpr int kStages = 2;
constexpr int kBothBarrier = 1 + kConsumers;  // 1 + c is consumer c's own

/// Of heads of up to kWidth columns. A tile of tokens is kBoxes boxes of lines, one after the
/// other.
template <int kWidth>
struct Shape {
  static constexpr int kBoxes = boxes_of(kWidth);
  static constexpr int kQueries = kRows * 128 / kWidth;  // of a chunk
  static constexpr int kHalves = kQueries / kRows;
  static constexpr int kKeyBytes = kBoxes * kKeyBox;
  static constexpr int kQueryBox = kQueries * kLine, kQueryBytes = kBoxes * kQueryBox;
  static constexpr int kSlopesBytes = kHalves * kKeyBox;  // keys by queries
  static constexpr int kRowsBytes = 2 * kQueries * static_cast<int>(sizeof(float));
  static constexpr int kStageBytes = 2 * kQueryBytes;
  static constexpr size_t kSharedBytes =
      2 * kKeyBytes + 2 * kSlopesBytes + kStages * (kStageBytes + kRowsBytes);
  // A consumer's part of a chunk's dq is 64 by 64.
  static_assert(kQueries * kWidth == kConsumers * kRows * kBoxColumns);
};

struct BackwardArguments : Arguments {
  int key_heads, key_pairs, key_blocks, parts, blocks_of_part, chunks, rows;
  float* sums = nullptr;  // [parts, pairs, rows, kWidth]: dq before its scale

  BackwardArguments(const AttentionProblem& p, const Tensor& delta, int queries_of_chunk)
      : Arguments(p, delta),
        key_heads(heads / sharing),
        key_pairs(pairs / sharing),
        key_blocks((keys + kKeys - 1) / kKeys),
        chunks((queries + queries_of_chunk - 1) / queries_of_chunk),
        rows(chunks * queries_of_chunk) {
    constexpr int kTargetUnits = 132;  // as many as an H100 has multiprocessors
    const int wanted = std::min((kTargetUnits + key_pairs - 1) / key_pairs, key_blocks);
    blocks_of_part = (key_blocks + wanted - 1) / wanted;
    parts = (key_blocks + blocks_of_part - 1) / blocks_of_part;
  }
  __host__ __device__ int units() const { return parts * key_pairs; }
  /// Under a causal mask a key is seen by no query before it.
  __device__ __forceinline__ int first_chunk(int key_block, int queries_of_chunk) const {
    return causal ? min(key_block * kKeys / queries_of_chunk, chunks) : 0;
  }
};

/// A part of a head's keys. First parts come first: under a causal mask they see the most queries.
struct Unit {
  int part, batch, head, first_block, last_block;

  __device__ __forceinline__ Unit(const BackwardArguments& p, int index)
      : part(index / p.key_pairs),
        batch(index % p.key_pairs / p.key_heads),
        head(index % p.key_pairs % p.key_heads),
        first_block(part * p.blocks_of_part),
        last_block(min(first_block + p.blocks_of_part, p.key_blocks) - 1) {}
  /// One of the pairs that share the keys.
  __device__ __forceinline__ Pair pair(const BackwardArguments& p, int i) const {
    return Pair(batch * p.heads + head * p.sharing + i, p.heads);
  }
};

struct Barriers {
  uint64_t full_keys, empty_keys, full[kStages], empty[kStages];

  __device__ __forceinline__ void start() {
    if (threadIdx.x == 0) {
      mbarrier_init(&full_keys, 1);
      mbarrier_init(&empty_keys, kConsumers);
      for (int s = 0; s < kStages; ++s) {
        mbarrier_init(&full[s], 1 + kWarp);
        mbarrier_init(&empty[s], kConsumers);
      }
      fence_mbarrier_init();
    }
    __syncthreads();
  }
};

/// A block's shared memory.
template <int kWidth>
struct Tiles {
  using S = Shape<kWidth>;
  char* const memory;

  __device__ __forceinline__ char* keys() const { return memory; }
  __device__ __forceinline__ char* values() const { return memory + S::kKeyBytes; }
  /// Of dS, one of two.
  __device__ __forceinline__ char* slopes(int buffer) const {
    return memory + 2 * S::kKeyBytes + buffer * S::kSlopesBytes;
  }
  __device__ __forceinline__ char* queries(int stage) const {
    return memory + 2 * (S::kKeyBytes + S::kSlopesBytes) + stage * S::kStageBytes;
  }
  __device__ __forceinline__ char* dout(int stage) const { return queries(stage) + S::kQueryBytes; }
  /// lse of a stage's queries, then delta.
  __device__ __forceinline__ float* rows(int stage) const {
    return reinterpret_cast<float*>(queries(kStages) + stage * S::kRowsBytes);
  }
};

/// The maps of the tensors that TMA moves.
struct Maps {
  TensorMap q, k, v, dout, dk, dv;
};

/// The producer's part, one warp's.
template <int kWidth>
__device__ __forceinline__ void produce(const BackwardArguments& p, const Tiles<kWidth>& tiles,
                                        Barriers& barriers, const Maps& maps) {
  using S = Shape<kWidth>;
  const int lane = static_cast<int>(threadIdx.x);
  Ring<1> of_keys;
  Ring<kStages> ring;
  for (int u = static_cast<int>(blockIdx.x); u < p.units(); u += static_cast<int>(gridDim.x)) {
    const Unit unit(p, u);
    for (int block = unit.first_block; block <= unit.last_block; ++block, of_keys.advance()) {
      mbarrier_wait(&barriers.empty_keys, of_keys.parity ^ 1);
      if (lane == 0) {
        uint64_t* const full = &barriers.full_keys;
        mbarrier_arrive_expect_tx(full, 2 * S::kKeyBytes);
        load_boxes<S::kBoxes>(tiles.keys(), kKeyBox, maps.k, full, block * kKeys, unit.head,
                              unit.batch);
        load_boxes<S::kBoxes>(tiles.values(), kKeyBox, maps.v, full, block * kKeys, unit.head,
                              unit.batch);
      }
      for (int i = 0; i < p.sharing; ++i) {
        const Pair pair = unit.pair(p, i);
        for (int chunk = p.first_chunk(block, S::kQueries); chunk < p.chunks;
             ++chunk, ring.advance()) {
          const int first = chunk * S::kQueries;
          uint64_t* const full = &barriers.full[ring.stage];
          mbarrier_wait(&barriers.empty[ring.stage], ring.parity ^ 1);
          if (lane == 0) {
            mbarrier_arrive_expect_tx(full, S::kStageBytes);
            load_boxes<S::kBoxes>(tiles.queries(ring.stage), S::kQueryBox, maps.q, full, first,
                                  pair.h, pair.b);
            load_boxes<S::kBoxes>(tiles.dout(ring.stage), S::kQueryBox, maps.dout, full, first,
                                  pair.h, pair.b);
          }
          // Queries beyond the last have zeros in all of it: they add nothing.
          const int64_t row0 = static_cast<int64_t>(pair.index) * p.queries;
#pragma unroll 1
          for (int e = lane; e < 2 * S::kQueries; e += kWarp) {
            const int query = first + e % S::kQueries;
            const float* const from = e < S::kQueries ? p.lse : p.delta;
            cp_async<4>(tiles.rows(ring.stage) + e, from + row0 + min(query, p.queries - 1),
                        query < p.queries ? 4 : 0);
          }
          cp_async_mbarrier_arrive(full);
        }
      }
    }
  }
}

/// Issues products = A B^T of 64 rows each, whose boxes lie a_box and b_box bytes apart.
template <class Type, int kWidth>
__device__ __forceinline__ void multiply_rows(float (&products)[kRows / 2], const char* a,
                                              int a_box, const char* b, int b_box) {
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    const int box = k / 4, bytes = k % 4 * 32;
    wgmma<Type, kRows>(products, wgmma_descriptor_k_major(a + box * a_box + bytes),
                       wgmma_descriptor_k_major(b + box * b_box + bytes), k > 0);
  }
  wgmma_commit();
}

/// Issues sums += weights B: 64 keys by 64 queries, times the queries' rows.
template <class Type, int kWidth>
__device__ __forceinline__ void accumulate(float (&sums)[kWidth / 2],
                                           const uint32_t (&weights)[kRows / 16][4],
                                           const char* b) {
#pragma unroll
  for (int k = 0; k < kRows / 16; ++k) {
    wgmma_of_registers<Type, kWidth, Major::kMn>(
        sums, weights[k], wgmma_descriptor_mn_major(b + k * 16 * kLine, Shape<kWidth>::kQueryBox),
        true);
  }
}

/// A thread's place in transposed scores: keys first_key and first_key + 8, queries from
/// first_query on in pairs, 8 apart.
template <bool kMasked>
struct Scores {
  const BackwardArguments& p;
  const int first_key, column;
  const int block_key;  // the consumer's first

  __device__ __forceinline__ Scores(const BackwardArguments& p, int block_key, int thread)
      : p(p),
        first_key(block_key + thread / kWarp * 16 + thread % kWarp / 4),
        column(2 * (thread % 4)),
        block_key(block_key) {}

  /// Products of keys and queries from query0 on become P^T.
  __device__ __forceinline__ void exponentiate(float (&scores)[kRows / 2], const Pair& pair,
                                               int query0, const float* lse) const {
    const float scale = p.scale * kLog2E;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const auto of_queries = *reinterpret_cast<const Pack<float, 2>*>(lse + 8 * j + column);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& score = scores[4 * j + e];
        const float of_query = of_queries.values[e % 2] * kLog2E;
        if constexpr (kMasked) {
          const int key = first_key + 8 * (e / 2), query = query0 + 8 * j + column + e % 2;
          const float sum = key < p.keys ? p.masked(pair, query, key, score) : -INFINITY;
          score = sum == -INFINITY ? 0 : ex2_approx(sum - of_query);
        } else {
          score = ex2_approx(std::fma(score, scale, -of_query));
        }
      }
    }
    if (block_key + kRows - 1 <= p.last_key(query0)) return;
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      const int key = first_key + 8 * (i / 2 % 2), query = query0 + 8 * (i / 4) + column + i % 2;
      if (key > p.last_key(query)) scores[i] = 0;
    }
  }
  /// Products of values and dout become dS^T.
  __device__ __forceinline__ void differentiate(float (&slopes)[kRows / 2],
                                                const float (&scores)[kRows / 2],
                                                const float* delta) const {
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const auto of_queries = *reinterpret_cast<const Pack<float, 2>*>(delta + 8 * j + column);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float score = scores[4 * j + e];
        float& slope = slopes[4 * j + e];
        slope = score == 0 ? 0 : score * (slope - of_queries.values[e % 2]);
      }
    }
  }
};

template <class Type, int kWidth, bool kMasked>
__global__ void __launch_bounds__(kThreads, 1)
    attention_wgmma_backward_kernel(const __grid_constant__ BackwardArguments p,
                                    const __grid_constant__ Maps maps) {
  using S = Shape<kWidth>;
  WEFT_DYNAMIC_SHARED(char, memory);
  WEFT_SHARED(Barriers, barriers);
  const Tiles<kWidth> tiles{memory};
  barriers.start();
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroupThreads;
  if (warpgroup == 0) {
    setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x < kWarp) produce<kWidth>(p, tiles, barriers, maps);
    return;
  }

  setmaxnreg_inc<kConsumerRegisters>();
  const int consumer = warpgroup - 1;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads;
  const auto arrive = [=](uint64_t* barrier) {
    if (thread == 0) mbarrier_arrive(barrier);
  };
  char* const own_keys = tiles.keys() + consumer * kAtom;
  char* const own_values = tiles.values() + consumer * kAtom;
  // Its part of a chunk's dq: 64 queries from this half on, the columns of this box.
  const int half_dq = S::kHalves == 2 ? consumer : 0, box_dq = S::kHalves == 2 ? 0 : consumer;
  Ring<1> of_keys;
  Ring<kStages> ring;
  int buffer = 0;
  for (int u = static_cast<int>(blockIdx.x); u < p.units(); u += static_cast<int>(gridDim.x)) {
    const Unit unit(p, u);
    for (int block = unit.first_block; block <= unit.last_block; ++block, of_keys.advance()) {
      const Scores<kMasked> of_scores(p, block * kKeys + consumer * kRows, thread);
      float dk[kWidth / 2] = {}, dv[kWidth / 2] = {};
      mbarrier_wait(&barriers.full_keys, of_keys.parity);
      for (int i = 0; i < p.sharing; ++i) {
        const Pair pair = unit.pair(p, i);
        for (int chunk = p.first_chunk(block, S::kQueries); chunk < p.chunks;
             ++chunk, ring.advance(), buffer ^= 1) {
          char* const tile_ds = tiles.slopes(buffer);
          const char* const queries = tiles.queries(ring.stage);
          const char* const dout = tiles.dout(ring.stage);
          uint32_t weights[kRows / 16][4], rounded[kRows / 16][4];
          mbarrier_wait(&barriers.full[ring.stage], ring.parity);
#pragma unroll 1
          for (int half = 0; half < S::kHalves; ++half) {
            float scores[kRows / 2], slopes[kRows / 2];
            const float* const lse = tiles.rows(ring.stage) + half * kRows;
            wgmma_fence();
            multiply_rows<Type, kWidth>(scores, own_keys, kKeyBox, queries + half * kAtom,
                                        S::kQueryBox);
            multiply_rows<Type, kWidth>(slopes, own_values, kKeyBox, dout + half * kAtom,
                                        S::kQueryBox);
            wgmma_wait<1>();
            of_scores.exponentiate(scores, pair, chunk * S::kQueries + half * kRows, lse);
            wgmma_wait<0>();
            of_scores.differentiate(slopes, scores, lse + S::kQueries);
            round_scores<Type>(weights, scores);
            round_scores<Type>(rounded, slopes);
            store_fragments(tile_ds + half * kKeyBox + consumer * kAtom, rounded);
            wgmma_fence();
            accumulate<Type, kWidth>(dv, weights, dout + half * kAtom);
            accumulate<Type, kWidth>(dk, rounded, queries + half * kAtom);
            wgmma_commit();  // under way until the next half's scores, or dq, are waited for
          }
          fence_proxy_async();
          named_barrier_sync(kBothBarrier, kBothThreads);
          float dq[kRows / 2];
          char* const all_keys = reread_place(tiles.keys() + box_dq * kKeyBox);
          wgmma_fence();
#pragma unroll
          for (int k = 0; k < kKeys / 16; ++k) {
            const int line = k * 16 * kLine;
            wgmma<Type, kBoxColumns, Major::kMn, Major::kMn>(
                dq, wgmma_descriptor_mn_major(tile_ds + half_dq * kKeyBox + line, kKeyBox),
                wgmma_descriptor_mn_major(all_keys + line, kKeyBox), k > 0);
          }
          wgmma_commit();
          const int row =
              chunk * S::kQueries + half_dq * kRows + thread / kWarp * 16 + thread % kWarp / 4;
          float* const to =
              p.sums +
              ((static_cast<int64_t>(unit.part) * p.pairs + pair.index) * p.rows + row) * kWidth +
              box_dq * kBoxColumns + 2 * (thread % 4);
          float sums[kRows / 2] = {};
          const auto at = [=](int j, int h) {
            return reinterpret_cast<Pack<float, 2>*>(to + 8 * j + 8 * h * kWidth);
          };
          if (block > unit.first_block) {
#pragma unroll
            for (int n = 0; n < kRows / 4; ++n) {
              const Pack<float, 2> sum = *at(n / 2, n % 2);
              sums[2 * n] = sum.values[0];
              sums[2 * n + 1] = sum.values[1];
            }
          }
          wgmma_wait<0>();
          arrive(&barriers.empty[ring.stage]);
#pragma unroll
          for (int n = 0; n < kRows / 4; ++n) {
            *at(n / 2, n % 2) = {{sums[2 * n] + dq[2 * n], sums[2 * n + 1] + dq[2 * n + 1]}};
          }
        }
      }
      // Both have read the keys; dk and dv take the place of a consumer's own.
      named_barrier_sync(kBothBarrier, kBothThreads);
      const float scale = p.scale;
      round_into_boxes<Narrow<Type>, kWidth>(
          own_keys, dk, [=](int) { return [=](int, int, float x) { return x * scale; }; }, kKeyBox);
      round_into_boxes<Narrow<Type>, kWidth>(
          own_values, dv, [](int) { return [](int, int, float x) { return x; }; }, kKeyBox);
      fence_proxy_async();
      named_barrier_sync(1 + consumer, kWarpgroupThreads);
      if (thread == 0) {
        const int first = block * kKeys + consumer * kRows;
        store_boxes<S::kBoxes>(maps.dk, own_keys, kKeyBox, first, unit.head, unit.batch);
        store_boxes<S::kBoxes>(maps.dv, own_values, kKeyBox, first, unit.head, unit.batch);
        tma_store_commit();
        tma_store_wait_read<0>();
        mbarrier_arrive(&barriers.empty_keys);
      }
    }
  }
}

constexpr int kSumThreads = 128;

/// dq: the parts' sums in order, times scale. A thread has four columns of a query.
template <class Type, int kWidth>
__global__ void __launch_bounds__(kSumThreads)
    attention_wgmma_sum_kernel(const __grid_constant__ BackwardArguments p, int64_t count) {
  constexpr int kColumns = 4, kThreadsOfRow = kWidth / kColumns;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  const int column = static_cast<int>(index % kThreadsOfRow) * kColumns;
  if (index >= count || column >= p.width) return;
  const int64_t row = index / kThreadsOfRow;
  const Pair pair(static_cast<int>(row / p.queries), p.heads);
  const int query = static_cast<int>(row % p.queries);
  constexpr int kQueries = Shape<kWidth>::kQueries;
  float sums[kColumns] = {};
  for (int part = 0; part < p.parts; ++part) {
    if (query / kQueries < p.first_chunk(part * p.blocks_of_part, kQueries)) break;
    const auto from = *reinterpret_cast<const Pack<float, kColumns>*>(
        p.sums + ((static_cast<int64_t>(part) * p.pairs + pair.index) * p.rows + query) * kWidth +
        column);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sums[i] += from.values[i];
  }
  auto* const to = p.dq.of<uint16_t>(pair) + query * p.dq.token + column;
  Pack<uint32_t, 2> pairs;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float x = sums[2 * i] * p.scale, y = sums[2 * i + 1] * p.scale;
    pairs.values[i] = std::is_same_v<Type, Bf16> ? cvt_rn_bf16x2(x, y) : cvt_rn_f16x2(x, y);
  }
  if (column + kColumns <= p.width) {
    *reinterpret_cast<Pack<uint32_t, 2>*>(to) = pairs;
    return;
  }
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    if (column + i < p.width) to[i] = static_cast<uint16_t>(pairs.values[i / 2] >> 16 * (i % 2));
  }
}

template <class Type, int kWidth, bool kMasked>
void backward(const AttentionProblem& problem) {
  using S = Shape<kWidth>;
  const Tensor delta = attention_delta(problem);
  BackwardArguments p(problem, delta, S::kQueries);
  const Tensor sums =
      Tensor::empty(weft::Shape{p.parts, p.pairs, p.rows, kWidth}, DType::f32, problem.device());
  p.sums = sums.data<float>();
  const Maps maps = {heads_map(problem.q, S::kQueries), heads_map(problem.k, kKeys),
                     heads_map(problem.v, kKeys),       heads_map(problem.dout, S::kQueries),
                     heads_map(problem.dk, kRows),      heads_map(problem.dv, kRows)};
  const runtime::StreamHandle stream = current_stream_handle(problem.device());
  launch_delta<kWidth, std::is_same_v<Type, Bf16> ? MmaOperand::kBf16 : MmaOperand::kF16>(p,
                                                                                          stream);
  WEFT_LAUNCH((attention_wgmma_backward_kernel<Type, kWidth, kMasked>),
              blocks_for(p.units(), problem.device()), kThreads, S::kSharedBytes, stream, p, maps);
  const int64_t count = static_cast<int64_t>(p.pairs) * p.queries * (kWidth / 4);
  WEFT_LAUNCH((attention_wgmma_sum_kernel<Type, kWidth>),
              static_cast<unsigned>((count + kSumThreads - 1) / kSumThreads), kSumThreads, 0,
              stream, p, count);
}

}  // namespace

void attention_cuda_wgmma_backward(const AttentionProblem& problem) {
  const auto of_type = [&](auto type) {
    using Type = decltype(type);
    if (problem.q.size(3) > 64) return backward<Type, 128, false>(problem);
    problem.mask.defined() ? backward<Type, 64, true>(problem) : backward<Type, 64, false>(problem);
  };
  problem.dtype() == DType::bf16 ? of_type(Bf16()) : of_type(F16());
}

}  // namespace weft::kernels
