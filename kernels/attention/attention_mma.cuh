// What the tensor-core kernels of attention share beside their tiles (token_tile.cuh): the problem,
// masks of dropout, the end of a query's row, delta, and the choice of an instance.
#pragma once

#include "kernels/attention/token_tile.cuh"
#include "kernels/device/approx.h"
#include "kernels/device/warpgroup.cuh"

namespace weft::kernels {

inline constexpr float kLog2E = 1.44269504088896341f, kLn2 = 0.693147180559945309f;

// Of a row of scores, over the 4 lanes that hold it. A maximum leaves a NaN to the sum.
__device__ __forceinline__ float quad_max(float x) {
  x = std::fmax(x, __shfl_xor_sync(kAllLanes, x, 1));
  return std::fmax(x, __shfl_xor_sync(kAllLanes, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

struct MmaAttention : AttentionFields<HeadRows, int, float> {
  int pairs = 0;  // of batches and heads
  float* lse = nullptr;
  float* delta = nullptr;  // [B, H, Tq]

  MmaAttention(const AttentionProblem& p, const Tensor& delta)
      : AttentionFields(p),
        pairs(static_cast<int>(attention_pairs(p))),
        lse(p.lse.data<float>()),
        delta(delta.defined() ? delta.data<float>() : nullptr) {}

  /// The last key that a query sees.
  __device__ __forceinline__ int last_key(int query) const {
    return causal ? min(keys - 1, query) : keys - 1;
  }
  /// The number of the score (query, key) of a pair among all.
  __device__ __forceinline__ uint64_t element(const Pair& pair, int query, int key) const {
    return (static_cast<uint64_t>(pair.index) * queries + query) * keys + key;
  }
  /// Bit w: dropout keeps element n / 4 * 4 + w.
  __device__ __forceinline__ uint32_t kept_words(uint64_t n) const {
    // ptxas would compute the keys of all rounds beforehand, and has no registers to keep them.
    const auto words = words_of(n, reread_number(seed));
    uint32_t kept = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) kept |= uint32_t{is_kept(words[w])} << w;
    return kept;
  }
  /// Bit 4 j + e: score e of block j of this lane is kept. Rows are queries from `query` on,
  /// columns keys from `key` on, a multiple of four; at most 8 blocks. The lanes of a quad, which
  /// have the same rows, draw for one another: each every other four words of one of the rows.
  template <int kBlocks>
  __device__ __forceinline__ uint32_t kept_scores(const Pair& pair, int query, int key) const {
    static_assert(kBlocks <= 8);
    const int lane = reread_thread() % kWarp, g = lane / 4, q = lane % 4;
    const uint64_t first = element(pair, query + g + 8 * (q / 2), key) + 4 * (q % 2);
    // Rows that do not begin at a first word reach into the words behind their last block.
    const int draws = keys % 4 == 0 ? kBlocks : kBlocks + 1;
    uint64_t drawn = 0;  // bits 4 j..: of block j
#pragma unroll 1
    for (int j = 0; j < draws; ++j) drawn |= uint64_t{kept_words(first + 8 * j)} << 4 * j;
    uint32_t kept = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const auto begin = static_cast<int>(element(pair, query + g + 8 * (e / 2), key) % 4);
      const int place = begin + 2 * q + e % 2;  // among the words from those of the block on
      const uint64_t words = __shfl_sync(kAllLanes, drawn, e / 2 * 2 + place / 4 % 2, 4);
      kept |= (static_cast<uint32_t>(words >> (place / 8 * 4 + place % 4)) & 0x11111111u) << e;
    }
    return kept;
  }
  /// The same of transposed scores: rows are 16 keys, columns queries. The eight lanes that have
  /// the same queries draw for one another: each four of a query's keys.
  template <int kBlocks>
  __device__ __forceinline__ uint32_t kept_transposed(const Pair& pair, int query, int key) const {
    static_assert(kBlocks <= 8);
    const int lane = reread_thread() % kWarp, g = lane / 4, q = lane % 4;
    // Eight rows of scores further no word's place is another.
    uint64_t n = element(pair, query + 2 * q + g / 4, key) + 4 * (g % 4);
    uint32_t drawn = 0;  // bits 4 j..: of block j
#pragma unroll 1
    for (int j = 0; j < kBlocks; ++j, n += uint64_t{8} * keys) drawn |= kept_words(n) << 4 * j;
    // Keys that do not begin at a first word reach into a fifth four, of which four lanes draw
    // those of two blocks each.
    uint32_t fifth = 0;
    if (keys % 4 != 0) {
      n = element(pair, query + 2 * q + g / 4 + 8 * (g % 4), key) + 16;
#pragma unroll 1
      for (int j = g % 4; j < kBlocks; j += 4, n += uint64_t{32} * keys) {
        fifth |= kept_words(n) << 4 * j;
      }
      fifth |= __shfl_xor_sync(kAllLanes, fifth, 4);
      fifth |= __shfl_xor_sync(kAllLanes, fifth, 8);
    }
    uint32_t kept = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const auto begin = static_cast<int>(element(pair, query + 2 * q + e % 2, key) % 4);
      const int place = begin + g + 8 * (e / 2);  // among the query's words
      const int of_query = e % 2 * 16 + q;        // the first of its lanes
      const uint32_t own = __shfl_sync(kAllLanes, drawn, of_query + place / 4 % 4 * 4);
      const uint32_t behind = __shfl_sync(kAllLanes, fifth, of_query);
      kept |= ((place < 16 ? own : behind) >> place % 4 & 0x11111111u) << e;
    }
    return kept;
  }

  /// Stores lse of a query, given the maximum of its scores in powers of 2 and this lane's part of
  /// the sum. Returns what its sums of values are to be multiplied by: of a query that sees no key
  /// by 0.
  template <bool kDropout>
  __device__ __forceinline__ float finish_query(const Pair& pair, int query, float max,
                                                float sum) const {
    const float total = quad_sum(sum);
    const float factor = total == 0 ? 0 : (kDropout ? kept_factor : 1) / total;
    if (threadIdx.x % 4 == 0 && query < queries) {
      lse[static_cast<int64_t>(pair.index) * queries + query] = max * kLn2 + std::log(total);
    }
    return factor;
  }
};

/// sum(a * b) of the lane's elements 8 part .. 8 part + 8 of two rows, in f32.
template <MmaOperand kOperand>
__device__ __forceinline__ float dot_of_parts(const MmaElement<kOperand>* a,
                                              const MmaElement<kOperand>* b, int part, int width) {
  using T = std::conditional_t<kOperand == MmaOperand::kTf32, float,
                               std::conditional_t<kOperand == MmaOperand::kBf16, bf16, f16>>;
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
    const Pair pair(static_cast<int>(row / p.queries), p.heads);
    const int64_t token = row % p.queries;
    sum = dot_of_parts<kOperand>(p.out.of<Element>(pair) + token * p.out.token,
                                 p.dout.of<Element>(pair) + token * p.dout.token, part, p.width);
  }
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, distance);
  }
  if (row < rows && part == 0) p.delta[row] = sum;
}

template <int kWidth, MmaOperand kOperand>
void launch_delta(const MmaAttention& p, runtime::StreamHandle stream) {
  constexpr int kRows = kDeltaThreads / (kWidth / 8);
  const int64_t rows = static_cast<int64_t>(p.pairs) * p.queries;
  if (rows == 0) return;
  WEFT_LAUNCH((attention_delta_kernel<kWidth, kOperand>),
              static_cast<unsigned>((rows + kRows - 1) / kRows), kDeltaThreads, 0, stream, p, rows);
}

/// Calls run<kWidth, kOperand, kDropout>(p, stream) with the instance of a kernel that a problem
/// takes; of a backward pass when delta's kernel is under way. An empty problem takes none.
template <class F>
void run_instance(const AttentionProblem& problem, F&& run) {
  const Tensor delta = attention_delta(problem);
  const MmaAttention p(problem, delta);
  const runtime::StreamHandle stream = current_stream_handle(problem.device());
  if (p.pairs == 0 || p.width == 0) return;
  const auto with_dropout = [&](auto width, auto operand) {
    constexpr int kWidth = width();
    constexpr MmaOperand kOperand = operand();
    if (p.delta) launch_delta<kWidth, kOperand>(p, stream);
    p.dropout > 0 ? run.template operator()<kWidth, kOperand, true>(p, stream)
                  : run.template operator()<kWidth, kOperand, false>(p, stream);
  };
  const auto with_operand = [&](auto width) {
    switch (problem.dtype()) {
      case DType::f32:
        return with_dropout(width, std::integral_constant<MmaOperand, MmaOperand::kTf32>());
      case DType::bf16:
        return with_dropout(width, std::integral_constant<MmaOperand, MmaOperand::kBf16>());
      default:
        return with_dropout(width, std::integral_constant<MmaOperand, MmaOperand::kF16>());
    }
  };
  if (p.width <= 32) return with_operand(std::integral_constant<int, 32>());
  if (p.width <= 64) return with_operand(std::integral_constant<int, 64>());
  with_operand(std::integral_constant<int, 128>());
}

}  // namespace weft::kernels
