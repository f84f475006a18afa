// An attention problem as the CUDA kernels of plain arithmetic see it: any strides, f32, f16 and
// bf16 (or f64) elements, computed in Acc.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/philox.h"
#include "core/stream.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_heads.h"
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

/// Elements from batch to batch, head to head and token to token of a [B, H, T, D] tensor.
struct HeadStrides {
  int64_t batch = 0, head = 0, token = 0;

  HeadStrides() = default;
  explicit HeadStrides(const Tensor& t) {
    if (!t.defined()) return;
    batch = t.strides()[0];
    head = t.strides()[1];
    token = t.strides()[2];
  }
};

/// What AttentionFields::moved stands for where it is null.
[[maybe_unused]] __device__ const int64_t kNotMoved = 0;

/// What the kernels want to know of a problem: where its heads lie, as a type Heads says it, counts
/// and real numbers.
template <class Heads, class Count, class Real>
struct AttentionFields {
  Heads q, k, v, out, dout, dq, dk, dv;
  Count heads, queries, keys, width;
  Count sharing;  // heads of q that share one of k and v
  Real scale, dropout;
  Real kept_factor;    // what dropout multiplies the scores by that it keeps
  uint32_t threshold;  // of is_kept
  bool causal;
  uint64_t seed, stream, offset;
  const int64_t* moved;  // may be null

  explicit AttentionFields(const AttentionProblem& p)
      : q(p.q),
        k(p.k),
        v(p.v),
        out(p.out),
        dout(p.dout),
        dq(p.dq),
        dk(p.dk),
        dv(p.dv),
        heads(static_cast<Count>(p.q.size(1))),
        queries(static_cast<Count>(p.q.size(2))),
        keys(static_cast<Count>(p.k.size(2))),
        width(static_cast<Count>(p.q.size(3))),
        sharing(static_cast<Count>(heads_per_key(p))),
        scale(static_cast<Real>(p.scale)),
        dropout(static_cast<Real>(p.dropout)),
        kept_factor(static_cast<Real>(1 / (1 - p.dropout))),
        threshold(p.threshold()),
        causal(p.causal),
        seed(p.seed),
        stream(p.stream),
        offset(p.offset),
        moved(p.moved.defined() ? p.moved.data<int64_t>() : nullptr) {}

  /// Dropout keeps those of four neighbouring scores whose words pass this.
  __device__ __forceinline__ bool is_kept(uint32_t word) const { return word >> 9 >= threshold; }
  /// The words of elements n / 4 * 4 to n / 4 * 4 + 3 of the scores; key: the seed.
  __device__ __forceinline__ auto words_of(uint64_t n, uint64_t key) const {
    // Two addresses, not two branches: those cost registers that attention_cuda_short.cu lacks.
    const uint64_t drawn = stream + static_cast<uint64_t>(*(moved ? moved : &kNotMoved));
    return philox4x32(key, drawn, offset + n / 4);
  }
  /// Dropout keeps element n of the scores.
  __device__ __forceinline__ bool keeps(uint64_t n) const {
    const auto words = words_of(n, seed);
    return is_kept(philox_word(words, n % 4));
  }
};

/// Memory for delta, [B, H, Tq]: sum of dout out along the heads. Undefined in forward.
inline Tensor attention_delta(const AttentionProblem& p) {
  if (!p.backward()) return Tensor();
  return Tensor::empty(p.lse.shape(), p.lse.dtype(), p.device());
}

/// [B, H, T, D] with dense heads of any dtype.
struct Heads : HeadStrides {
  Numbers elements;

  Heads() = default;
  explicit Heads(const Tensor& t) : HeadStrides(t), elements(t) {}
  template <class Acc>
  __device__ Acc at(int64_t b, int64_t h, int64_t t, int64_t d) const {
    return load_one<Acc>(elements, b * batch + h * head + t * token + d);
  }
  template <class Acc>
  __device__ void put(int64_t b, int64_t h, int64_t t, int64_t d, Acc x) const {
    store_one(elements, b * batch + h * head + t * token + d, x);
  }
};

/// [B, H, Tq, Tk] of any strides, or nothing.
struct AttentionMask {
  const void* elements = nullptr;
  bool is_added = false;  // to the scores
  int64_t strides[4] = {};

  explicit AttentionMask(const AttentionProblem& p) {
    if (!p.mask.defined()) return;
    elements = p.mask.raw();
    is_added = p.mask.dtype() != DType::boolean;
    for (int d = 0; d < 4; ++d) strides[d] = p.mask.strides()[d];
  }
  /// What the mask adds to a score: -inf for a hidden key.
  template <class Acc>
  __device__ __forceinline__ Acc added(int64_t b, int64_t h, int64_t query, int64_t key) const {
    if (!elements) return 0;
    const int64_t at = b * strides[0] + h * strides[1] + query * strides[2] + key * strides[3];
    if (is_added) return static_cast<const Acc*>(elements)[at];
    return static_cast<const uint8_t*>(elements)[at] ? Acc{0} : static_cast<Acc>(-INFINITY);
  }
};

struct AttentionArguments : AttentionFields<Heads, int64_t, double> {
  int64_t batches;
  Numbers lse, delta;  // [B, H, Tq]
  Tf32 tf32;           // what becomes of the factors of products
  AttentionMask mask;

  AttentionArguments(const AttentionProblem& p, const Tensor& delta)
      : AttentionFields(p),
        batches(p.q.size(0)),
        lse(p.lse),
        delta(delta),
        tf32(p.dtype() == DType::f32 ? p.numerics.tf32 : Tf32::kOff),
        mask(p) {}

  /// x as a factor of a product. Products of TF32's 11 bits are exact in f32.
  __device__ __forceinline__ float factor(float x) const {
    if (tf32 == Tf32::kOff) return x;
    const uint32_t bits = tf32 == Tf32::kNearest ? ptx::cvt_rna_tf32(x) : __float_as_uint(x);
    return __uint_as_float(bits & 0xffffe000u);
  }
  __device__ __forceinline__ double factor(double x) const { return x; }

  /// Place of a query in lse and delta.
  __device__ int64_t row(int64_t b, int64_t h, int64_t query) const {
    return (b * heads + h) * queries + query;
  }
  __device__ bool sees(int64_t query, int64_t key) const { return !causal || key <= query; }
};

}  // namespace weft::kernels
