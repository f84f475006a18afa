// An attention problem as the CUDA kernels of plain arithmetic see it: any strides, f32, f16 and
// bf16 (or f64) elements, computed in Acc.
#pragma once

#include <cmath>

#include "core/philox.h"
#include "core/stream.h"
#include "kernels/attention/attention.h"
#include "kernels/device/elements.cuh"
#include "kernels/device/mma.h"
#include "kernels/device/warp.cuh"

namespace weft::kernels {

/// One of Philox's four words, chosen without an index, which would send them to memory.
__device__ __forceinline__ uint32_t philox_word(const std::array<uint32_t, 4>& words,
                                                uint32_t place) {
  const uint32_t low = place == 0 ? words[0] : words[1], high = place == 2 ? words[2] : words[3];
  return place < 2 ? low : high;
}

/// [B, H, T, D] with dense heads.
struct Heads {
  Numbers elements;
  int64_t batch = 0, head = 0, token = 0;

  Heads() = default;
  explicit Heads(const Tensor& t) : elements(t) {
    if (!t.defined()) return;
    batch = t.strides()[0];
    head = t.strides()[1];
    token = t.strides()[2];
  }
  template <class Acc>
  __device__ Acc at(int64_t b, int64_t h, int64_t t, int64_t d) const {
    return load_one<Acc>(elements, b * batch + h * head + t * token + d);
  }
  template <class Acc>
  __device__ void put(int64_t b, int64_t h, int64_t t, int64_t d, Acc x) const {
    store_one(elements, b * batch + h * head + t * token + d, x);
  }
};

struct AttentionArguments {
  Heads q, k, v, out, dout, dq, dk, dv;
  Numbers lse, delta;  // [B, H, Tq]; delta: sum of dout out along the heads
  int64_t batches, heads, queries, keys, width;
  double scale;
  bool causal;
  double dropout;
  uint64_t seed, stream, offset;
  Tf32 tf32;  // what becomes of the factors of products

  /// `delta`: memory for it; undefined in forward.
  AttentionArguments(const AttentionProblem& p, const Tensor& delta)
      : q(p.q),
        k(p.k),
        v(p.v),
        out(p.out),
        dout(p.dout),
        dq(p.dq),
        dk(p.dk),
        dv(p.dv),
        lse(p.lse),
        delta(delta),
        batches(p.q.size(0)),
        heads(p.q.size(1)),
        queries(p.q.size(2)),
        keys(p.k.size(2)),
        width(p.q.size(3)),
        scale(p.scale),
        causal(p.causal),
        dropout(p.dropout),
        seed(p.seed),
        stream(p.stream),
        offset(p.offset),
        tf32(p.dtype() == DType::f32 ? p.numerics.tf32 : Tf32::off) {}

  /// x as a factor of a product. Products of TF32's 11 bits are exact in f32.
  __device__ __forceinline__ float factor(float x) const {
    if (tf32 == Tf32::off) return x;
    const uint32_t bits = tf32 == Tf32::nearest ? ptx::cvt_rna_tf32(x) : __float_as_uint(x);
    return __uint_as_float(bits & 0xffffe000u);
  }
  __device__ __forceinline__ double factor(double x) const { return x; }

  /// Place of a query in lse and delta.
  __device__ int64_t row(int64_t b, int64_t h, int64_t query) const {
    return (b * heads + h) * queries + query;
  }
  __device__ bool sees(int64_t query, int64_t key) const { return !causal || key <= query; }
  /// Dropout keeps element n of the scores.
  __device__ bool keeps(uint64_t n) const {
    const auto words = philox4x32(seed, stream, offset + n / 4);
    return uniform_from_bits(philox_word(words, n % 4)) >= static_cast<float>(dropout);
  }
  /// What it multiplies those by.
  template <class Acc>
  __device__ Acc kept_factor() const {
    return static_cast<Acc>(1 / (1 - dropout));
  }
};

}  // namespace weft::kernels
