// Hopper's gradients of attention over many keys: one pass, five products, on wgmma and TMA in a
// persistent, warp-specialised kernel (sm_90a). Of 16-bit heads of up to 256 columns.
//
// A block of three warpgroups owns blocks of 128 keys of a head, one after the other. The first
// warp, the producer, brings them, and chunks of queries with dout, lse and delta into a ring of
// two stages. The two others, the consumers, own 64 keys each:
//
//   P^T = exp(K Q^T - lse), dS^T = P^T (V dout^T - delta)    64 queries at a time, in registers
//   dv += P^T dout, dk += dS^T Q                             left operands from registers
//   dq += dS K                                               dS by way of shared memory
//
// dk and dv stay in registers. Those of heads of more than 128 columns are too many: there a block
// owns 64 keys, whose scores both consumers compute, and each has half of the columns of dk and dv.
// That is seven products in place of five.
//
// A chunk's dq needs all keys: the consumers share it out, by queries
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
#include "kernels/device/instances.h"
#include "kernels/device/warpgroup.cuh"

namespace weft::kernels {
namespace {

using namespace ptx;
using namespace wgmma_attention;

/// Registers of a thread once the producer has given up most of its own: 24 + 2 x 240 of 504.
constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
constexpr int kStages = 2;
constexpr int kBothBarrier = 1 + kConsumers;  // 1 + c is consumer c's own

/// Of heads of up to kWidth columns. A tile of tokens is kBoxes boxes of lines, one after the
/// other.
template <int kWidth>
struct Shape {
  static constexpr bool kSharesKeys = kWidth > 128;                         // do the consumers?
  static constexpr int kKeys = kRows * (kSharesKeys ? 1 : kConsumers);      // of a block
  static constexpr int kColumns = kWidth / (kSharesKeys ? kConsumers : 1);  // of a consumer's dk
  static constexpr int kBoxes = boxes_of(kWidth), kOwnBoxes = boxes_of(kColumns);
  static constexpr int kQueries = kWidth > 64 ? kRows : 2 * kRows;  // of a chunk
  static constexpr int kHalves = kQueries / kRows;
  static constexpr int kKeyBox = kKeys * kLine, kKeyBytes = kBoxes * kKeyBox;
  static constexpr int kQueryBox = kQueries * kLine, kQueryBytes = kBoxes * kQueryBox;
  static constexpr int kSlopesBytes = kHalves * kKeyBox;  // keys by queries
  static constexpr int kRowsBytes = 2 * kQueries * static_cast<int>(sizeof(float));
  static constexpr int kStageBytes = 2 * kQueryBytes;
  static constexpr size_t kSharedBytes =
      2 * kKeyBytes + kStages * (kSlopesBytes + kStageBytes + kRowsBytes);
  // A consumer's part of a chunk's dq, in pieces of 64 by 64.
  static constexpr int kPieces = kQueries * kWidth / (kConsumers * kRows * kBoxColumns);
};

/// A consumer's part of a block: keys from this row on, columns of dk and dv from this box on; and
/// of a chunk's dq, this half of the queries, columns from this box on.
template <class S>
struct Share {
  int row, box, half_dq, box_dq;

  __device__ __forceinline__ explicit Share(int consumer)
      : row(S::kSharesKeys ? 0 : consumer * kRows),
        box(S::kSharesKeys ? consumer * S::kOwnBoxes : 0),
        half_dq(S::kHalves == 2 ? consumer : 0),
        box_dq(S::kHalves == 2 ? 0 : consumer * S::kPieces) {}
};

struct BackwardArguments : Arguments {
  int keys_of_block, key_heads, key_pairs, key_blocks, parts, blocks_of_part, chunks, rows;
  float* sums = nullptr;  // [parts, pairs, rows, kWidth]: dq before its scale

  BackwardArguments(const AttentionProblem& p, const Tensor& delta, int keys_of_block,
                    int queries_of_chunk)
      : Arguments(p, delta),
        keys_of_block(keys_of_block),
        key_heads(heads / sharing),
        key_pairs(pairs / sharing),
        key_blocks((keys + keys_of_block - 1) / keys_of_block),
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
    return causal ? min(key_block * keys_of_block / queries_of_chunk, chunks) : 0;
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
  /// Its number again: a register less than to keep it.
  __device__ __forceinline__ int index(const BackwardArguments& p) const {
    return part * p.key_pairs + batch * p.key_heads + head;
  }
  /// One of the pairs that share the keys.
  __device__ __forceinline__ Pair pair(const BackwardArguments& p, int i) const {
    return Pair(batch, head * p.sharing + i, p.heads);
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
  /// Of dS, one for each stage.
  __device__ __forceinline__ char* slopes(int stage) const {
    return memory + 2 * S::kKeyBytes + stage * S::kSlopesBytes;
  }
  __device__ __forceinline__ char* queries(int stage) const {
    return memory + 2 * S::kKeyBytes + kStages * S::kSlopesBytes + stage * S::kStageBytes;
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
        load_boxes<S::kBoxes>(tiles.keys(), S::kKeyBox, maps.k, full, block * S::kKeys, unit.head,
                              unit.batch);
        load_boxes<S::kBoxes>(tiles.values(), S::kKeyBox, maps.v, full, block * S::kKeys, unit.head,
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
  const uint64_t of_a = wgmma_descriptor_k_major(a), of_b = wgmma_descriptor_k_major(b);
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    const int box = k / 4, bytes = k % 4 * 32;
    wgmma<Type, kRows>(products, wgmma_descriptor_behind(of_a, box * a_box + bytes),
                       wgmma_descriptor_behind(of_b, box * b_box + bytes), k > 0);
  }
  wgmma_commit();
}

/// Issues sums += weights B: 64 keys by 64 queries, times kColumns of the queries' rows, whose
/// boxes lie kBox bytes apart.
template <class Type, int kColumns, int kBox>
__device__ __forceinline__ void accumulate(float (&sums)[kColumns / 2],
                                           const uint32_t (&weights)[kRows / 16][4],
                                           const char* b) {
  const uint64_t of_b = wgmma_descriptor_mn_major(b, kBox);
#pragma unroll
  for (int k = 0; k < kRows / 16; ++k) {
    wgmma_of_registers<Type, kColumns, Major::kMn>(
        sums, weights[k], wgmma_descriptor_behind(of_b, k * 16 * kLine), true);
  }
}

/// A thread's part of a consumer's transposed scores: keys g and g + 8 of its warp's 16, queries in
/// pairs, 8 apart. What follows from the thread's number is computed where it is needed: there are
/// no registers to keep it in.
template <bool kMasked, bool kDropout>
struct Scores {
  const BackwardArguments& p;
  const int block_key;  // the consumer's first

  __device__ __forceinline__ int first_key() const {
    const int thread = reread_thread();
    return block_key + thread / kWarp * 16 + thread % kWarp / 4;
  }
  /// The thread's first query, from a chunk's.
  __device__ __forceinline__ int column() const { return 2 * (reread_thread() % 4); }

  /// Products of keys and queries from query0 on become P^T.
  __device__ __forceinline__ void exponentiate(float (&scores)[kRows / 2], const Pair& pair,
                                               int query0, const float* lse) const {
    const float scale = p.scale * kLog2E;
    const int column = this->column();
    if constexpr (kMasked) {
      p.mask.with_element([&](auto element) { mask<decltype(element)>(scores, pair, query0); });
    }
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const auto of_queries = *reinterpret_cast<const Pack<float, 2>*>(lse + 8 * j + column);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& score = scores[4 * j + e];
        const float of_query = of_queries.values[e % 2] * kLog2E;
        if constexpr (kMasked) {
          score = score == -INFINITY ? 0 : ex2_approx(score - of_query);
        } else {
          score = ex2_approx(std::fma(score, scale, -of_query));
        }
      }
    }
    // Queries beyond the last add nothing, as their rows are zeros: unless a mask makes infinities.
    const bool is_whole = !kMasked || query0 + kRows <= p.queries;
    if (is_whole && block_key + kRows - 1 <= p.last_key(query0)) return;
    const int first = first_key();
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      const int key = first + 8 * (i / 2 % 2), query = query0 + 8 * (i / 4) + column + i % 2;
      if (key > p.last_key(query) || (kMasked && query >= p.queries)) scores[i] = 0;
    }
  }
  /// Which scores dropout keeps, as MmaAttention::kept_transposed says it.
  __device__ __forceinline__ uint32_t kept(const Pair& pair, int query0) const {
    if constexpr (!kDropout) return ~0u;
    Pair same = pair;
    same.index = reread_number(pair.index);
    return p.kept_transposed<kRows / 8>(same, query0, block_key + reread_thread() / kWarp * 16);
  }
  /// Products of values and dout become dS^T, and P^T dropout's.
  __device__ __forceinline__ void differentiate(float (&slopes)[kRows / 2],
                                                float (&scores)[kRows / 2], const float* delta,
                                                uint32_t kept) const {
    const int column = this->column();
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const auto of_queries = *reinterpret_cast<const Pack<float, 2>*>(delta + 8 * j + column);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& score = scores[4 * j + e];
        float& slope = slopes[4 * j + e];
        float factor = 1;
        if constexpr (kDropout) factor = (kept >> (4 * j + e) & 1) == 0 ? 0 : p.kept_factor;
        slope = score == 0 ? 0 : score * (slope * factor - of_queries.values[e % 2]);
        score *= factor;
      }
    }
  }

 private:
  /// Products become scores in powers of 2. Queries and keys beyond the last take the last one's
  /// elements.
  template <class T>
  __device__ __forceinline__ void mask(float (&scores)[kRows / 2], const Pair& pair,
                                       int query0) const {
    const int first = first_key(), column = this->column();
    const char* keys[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      keys[r] = p.mask.of(pair) + int64_t{min(first + 8 * r, p.keys - 1)} * p.mask.key;
    }
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      const int query = min(query0 + 8 * (i / 4) + column + i % 2, p.queries - 1);
      const char* const at = keys[i / 2 % 2] + int64_t{query} * p.mask.query;
      scores[i] = masked(scores[i], p.scale * kLog2E, *reinterpret_cast<const T*>(at));
    }
  }
};

template <class Type, int kWidth, bool kMasked, bool kDropout>
__global__ void __launch_bounds__(kThreads, 1)
    attention_wgmma_backward_kernel(const __grid_constant__ BackwardArguments p,
                                    const __grid_constant__ Maps maps) {
  using S = Shape<kWidth>;
  WEFT_DYNAMIC_SHARED(char, memory);
  WEFT_SHARED(Barriers, barriers);
  const Tiles<kWidth> tiles{memory};
  barriers.start();
  if (uniform_warpgroup() == 0) {
    setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x < kWarp) produce<kWidth>(p, tiles, barriers, maps);
    return;
  }

  setmaxnreg_inc<kConsumerRegisters>();
  const auto arrive = [=](uint64_t* barrier) {
    if (reread_thread() == 0) mbarrier_arrive(barrier);
  };
  Ring<1> of_keys;
  Ring<kStages> ring;
  for (int u = static_cast<int>(blockIdx.x); u < p.units();) {
    const Unit unit(p, u);
    for (int block = unit.first_block; block <= unit.last_block; ++block, of_keys.advance()) {
      float dk[S::kColumns / 2] = {}, dv[S::kColumns / 2] = {};
      mbarrier_wait(&barriers.full_keys, of_keys.parity);
      for (int i = 0; i < p.sharing; ++i) {
        const Pair pair = unit.pair(p, i);
        for (int chunk = p.first_chunk(block, S::kQueries); chunk < p.chunks;
             ++chunk, ring.advance()) {
          // Asked for anew, as are all that hang on it: no registers are left to keep them in.
          const Share<S> own(uniform_warpgroup() - 1);
          const Scores<kMasked, kDropout> of_scores{p, block * S::kKeys + own.row};
          const char* const own_keys = tiles.keys() + own.row * kLine;
          const char* const own_values = tiles.values() + own.row * kLine;
          char* const tile_ds = tiles.slopes(ring.stage);
          const char* const queries = tiles.queries(ring.stage);
          const char* const dout = tiles.dout(ring.stage);
          uint32_t weights[kRows / 16][4], rounded[kRows / 16][4];
          mbarrier_wait(&barriers.full[ring.stage], ring.parity);
#pragma unroll 1
          for (int half = 0; half < S::kHalves; ++half) {
            float scores[kRows / 2], slopes[kRows / 2];
            const float* const lse = tiles.rows(ring.stage) + half * kRows;
            wgmma_fence();
            multiply_rows<Type, kWidth>(scores, own_keys, S::kKeyBox, queries + half * kAtom,
                                        S::kQueryBox);
            multiply_rows<Type, kWidth>(slopes, own_values, S::kKeyBox, dout + half * kAtom,
                                        S::kQueryBox);
            const int query0 = chunk * S::kQueries + half * kRows;
            const uint32_t kept = of_scores.kept(pair, query0);
            wgmma_wait<1>();
            of_scores.exponentiate(scores, pair, query0, lse);
            wgmma_wait<0>();
            of_scores.differentiate(slopes, scores, lse + S::kQueries, kept);
            round_scores<Type>(weights, scores);
            round_scores<Type>(rounded, slopes);
            if (!S::kSharesKeys || own.box == 0) {
              store_fragments(tile_ds + half * S::kKeyBox + own.row * kLine, rounded);
            }
            wgmma_fence();
            const int columns = half * kAtom + own.box * S::kQueryBox;
            accumulate<Type, S::kColumns, S::kQueryBox>(dv, weights, dout + columns);
            accumulate<Type, S::kColumns, S::kQueryBox>(dk, rounded, queries + columns);
            wgmma_commit();  // under way until the next half's scores, or dq, are waited for
          }
          fence_proxy_async();
          named_barrier_sync(kBothBarrier, kBothThreads);
#pragma unroll 1
          for (int piece = 0; piece < S::kPieces; ++piece) {
            const int box = own.box_dq + piece;
            float dq[kRows / 2];
            const uint64_t slopes =
                wgmma_descriptor_mn_major(tile_ds + own.half_dq * S::kKeyBox, S::kKeyBox);
            const uint64_t keys = wgmma_descriptor_mn_major(
                reread_place(tiles.keys() + box * S::kKeyBox), S::kKeyBox);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < S::kKeys / 16; ++k) {
              const int line = k * 16 * kLine;
              wgmma<Type, kBoxColumns, Major::kMn, Major::kMn>(
                  dq, wgmma_descriptor_behind(slopes, line), wgmma_descriptor_behind(keys, line),
                  k > 0);
            }
            wgmma_commit();
            const int thread = reread_thread();
            const int row = chunk * S::kQueries + own.half_dq * kRows + thread / kWarp * 16 +
                            thread % kWarp / 4;
            float* const to =
                p.sums +
                ((static_cast<int64_t>(unit.part) * p.pairs + pair.index) * p.rows + row) * kWidth +
                box * kBoxColumns + 2 * (thread % 4);
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
            if (piece == 0) arrive(&barriers.empty[ring.stage]);
#pragma unroll
            for (int n = 0; n < kRows / 4; ++n) {
              *at(n / 2, n % 2) = {{sums[2 * n] + dq[2 * n], sums[2 * n + 1] + dq[2 * n + 1]}};
            }
          }
        }
      }
      // Both have read the keys; dk and dv take the place of a consumer's own.
      named_barrier_sync(kBothBarrier, kBothThreads);
      const int consumer = uniform_warpgroup() - 1;
      const Share<S> own(consumer);
      const int place = own.box * S::kKeyBox + own.row * kLine;
      char* const own_keys = tiles.keys() + place;
      char* const own_values = tiles.values() + place;
      const float scale = p.scale;
      round_into_boxes<Narrow<Type>, S::kColumns>(
          own_keys, dk, [=](int) { return [=](int, int, float x) { return x * scale; }; },
          S::kKeyBox);
      round_into_boxes<Narrow<Type>, S::kColumns>(
          own_values, dv, [](int) { return [](int, int, float x) { return x; }; }, S::kKeyBox);
      fence_proxy_async();
      named_barrier_sync(1 + consumer, kWarpgroupThreads);
      if (reread_thread() == 0) {
        const int first = block * S::kKeys + own.row;
        store_boxes<S::kOwnBoxes>(maps.dk, own_keys, S::kKeyBox, first, unit.head, unit.batch,
                                  own.box);
        store_boxes<S::kOwnBoxes>(maps.dv, own_values, S::kKeyBox, first, unit.head, unit.batch,
                                  own.box);
        tma_store_commit();
        tma_store_wait_read<0>();
        mbarrier_arrive(&barriers.empty_keys);
      }
    }
    u = unit.index(p) + static_cast<int>(gridDim.x);
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

template <class Type, int kWidth, bool kMasked, bool kDropout>
void backward(const AttentionProblem& problem) {
  using S = Shape<kWidth>;
  const Tensor delta = attention_delta(problem);
  BackwardArguments p(problem, delta, S::kKeys, S::kQueries);
  const Tensor sums =
      Tensor::empty(weft::Shape{p.parts, p.pairs, p.rows, kWidth}, DType::f32, problem.device());
  p.sums = sums.data<float>();
  const Maps maps = {heads_map(problem.q, S::kQueries), heads_map(problem.k, S::kKeys),
                     heads_map(problem.v, S::kKeys),    heads_map(problem.dout, S::kQueries),
                     heads_map(problem.dk, kRows),      heads_map(problem.dv, kRows)};
  const runtime::StreamHandle stream = current_stream_handle(problem.device());
  launch_delta<kWidth, std::is_same_v<Type, Bf16> ? MmaOperand::kBf16 : MmaOperand::kF16>(p,
                                                                                          stream);
  WEFT_LAUNCH((attention_wgmma_backward_kernel<Type, kWidth, kMasked, kDropout>),
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
    with_flags(
        [&](auto is_masked, auto has_dropout) {
          const int64_t width = problem.q.size(3);
          width <= 64    ? backward<Type, 64, is_masked(), has_dropout()>(problem)
          : width <= 128 ? backward<Type, 128, is_masked(), has_dropout()>(problem)
                         : backward<Type, 256, is_masked(), has_dropout()>(problem);
        },
        problem.mask.defined(), problem.dropout > 0);
  };
  problem.dtype() == DType::bf16 ? of_type(Bf16()) : of_type(F16());
}

}  // namespace weft::kernels
