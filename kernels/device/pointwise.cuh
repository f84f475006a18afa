// Elementwise kernels: out[i] = f(in_0[i], in_1[i], ...) over tensors of one shape.
//
//   struct Negate {
//     template <class Acc, int n>
//     __device__ void operator()(const Acc (&in)[1][n], Acc (&out)[n]) const;
//   };
//   pointwise<Arithmetic<float>>(Negate{}, y, {x});
//
// f sees n elements of each input at once, so that a switch over ops is taken once for all. Tensors
// that lie side by side in the same order are read 8 elements at a time, as are rows of 8 and more
// that begin at multiples of 8; others one by one. Offsets other than the index are computed from
// it. An input that repeats one element is read once. Memory-bound.
#pragma once

#include <algorithm>
#include <array>
#include <tuple>

#include "core/stream.h"
#include "kernels/device/elements.cuh"
#include "kernels/device/warp.cuh"
#include "kernels/elementwise/walk.h"

namespace weft::kernels {

/// Elements of any dtype as numbers of type Acc.
template <class Acc>
struct Arithmetic {
  using Value = Acc;
  template <int n>
  static __device__ void load(const Elements& from, int64_t i, Acc (&x)[n]) {
    kernels::load(from, i, x);
  }
  template <int n>
  static __device__ void store(const Elements& to, int64_t i, const Acc (&x)[n]) {
    kernels::store(to, i, x);
  }
};

/// Elements moved as words of their size, all bits kept; bool is a byte.
template <class Word>
struct Bits {
  using Value = Word;
  template <int n>
  static __device__ void load(const Elements& from, int64_t i, Word (&x)[n]) {
    if (from.dtype != DType::boolean) return elements::load_as<Word, n>(from.data, i, x);
    uint8_t bytes[n];
    elements::load_as<uint8_t, n>(from.data, i, bytes);
#pragma unroll
    for (int k = 0; k < n; ++k) x[k] = bytes[k];
  }
  template <int n>
  static __device__ void store(const Elements& to, int64_t i, const Word (&x)[n]) {
    elements::store_as<Word, n>(to.data, i, x);
  }
};

/// The output and its inputs, with what a kernel needs to find element i of each. There may be no
/// input; C++ has no arrays of none.
template <int kInputs>
struct PointwiseOperands {
  static constexpr int kSlots = kInputs > 0 ? kInputs : 1;
  Elements out, in[kSlots];
  bool is_constant[kSlots];
  int64_t numel;
  int dims;
  int64_t shape[kMaxDims];
  int64_t out_strides[kMaxDims], in_strides[kSlots][kMaxDims];
};

namespace pointwise_kernels {

inline constexpr int kThreads = 256;
inline constexpr int kVector = 8;

/// Element i, n times.
template <class Access, int n>
__device__ __forceinline__ void load_repeated(const Elements& from, int64_t i,
                                              typename Access::Value (&x)[n]) {
  typename Access::Value one[1];
  Access::load(from, i, one);
#pragma unroll
  for (int v = 0; v < n; ++v) x[v] = one[0];
}

/// Thread t of the grid owns the vectors t, t + threads, ...; the first threads own the ragged end.
template <class Access, int kInputs, class F>
__global__ void __launch_bounds__(kThreads)
    pointwise_dense_kernel(PointwiseOperands<kInputs> p, F f) {
  using Value = typename Access::Value;
  constexpr int kSlots = PointwiseOperands<kInputs>::kSlots;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  Value in[kSlots][kVector], out[kVector];
  for (int k = 0; k < kInputs; ++k) {
    if (!p.is_constant[k]) continue;
    load_repeated<Access>(p.in[k], 0, in[k]);
  }
  const int64_t whole = p.numel / kVector * kVector;
  for (int64_t i = thread * kVector; i < whole; i += threads * kVector) {
#pragma unroll
    for (int k = 0; k < kInputs; ++k) {
      if (!p.is_constant[k]) Access::load(p.in[k], i, in[k]);
    }
    f(in, out);
    Access::store(p.out, i, out);
  }
  const int64_t i = whole + thread;
  if (i < p.numel) {
    Value one_in[kSlots][1], one_out[1];
#pragma unroll
    for (int k = 0; k < kInputs; ++k) Access::load(p.in[k], p.is_constant[k] ? 0 : i, one_in[k]);
    f(one_in, one_out);
    Access::store(p.out, i, one_out);
  }
}

/// Vectors of n elements, of which p counts and addresses the first ones alone. Index is uint32_t
/// where it suffices: divisions of 64 bits are slow.
template <class Access, int kInputs, int n, class Index, class F>
__global__ void __launch_bounds__(kThreads)
    pointwise_strided_kernel(PointwiseOperands<kInputs> p, F f) {
  using Value = typename Access::Value;
  constexpr int kSlots = PointwiseOperands<kInputs>::kSlots;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < p.numel;
       i += threads) {
    int64_t to = 0, from[kSlots] = {};
    Index rest = static_cast<Index>(i);
    for (int d = p.dims - 1; d >= 0; --d) {
      const Index size = static_cast<Index>(p.shape[d]);
      const int64_t place = rest % size;
      rest /= size;
      to += place * p.out_strides[d];
#pragma unroll
      for (int k = 0; k < kInputs; ++k) from[k] += place * p.in_strides[k][d];
    }
    Value in[kSlots][n], out[n];
#pragma unroll
    for (int k = 0; k < kInputs; ++k) {
      if (n > 1 && p.is_constant[k]) {
        load_repeated<Access>(p.in[k], from[k], in[k]);
      } else {
        Access::load(p.in[k], from[k], in[k]);
      }
    }
    f(in, out);
    Access::store(p.out, to, out);
  }
}

/// Whether a tensor of these strides, `size` elements along the last, has its vectors in one piece
/// each.
inline bool has_vectors(const int64_t* strides, int dims, int64_t size) {
  const bool rows_fit = std::all_of(strides, strides + dims - 1,
                                    [](int64_t stride) { return stride % kVector == 0; });
  return rows_fit && strides[dims - 1] == 1 && size % kVector == 0;
}

}  // namespace pointwise_kernels

/// Computes y = f(inputs) on y's device and its current stream.
template <class Access, size_t kInputs, class F>
void pointwise(const F& f, const Tensor& y, const std::array<Tensor, kInputs>& inputs) {
  using namespace pointwise_kernels;
  constexpr int kCount = static_cast<int>(kInputs);
  if (y.numel() == 0) return;
  const Walk walk = std::apply([&](const auto&... input) { return Walk({y, input...}); }, inputs);
  PointwiseOperands<kCount> p = {};
  p.numel = walk.numel();
  p.dims = walk.shape().size();
  p.out = Elements(y);
  bool dense = walk.is_dense(0), in_vectors = is_aligned(y, kVector);
  for (int d = 0; d < p.dims; ++d) {
    p.shape[d] = walk.shape()[d];
    p.out_strides[d] = walk.strides(0)[d];
  }
  const int last = p.dims - 1;
  bool rows_fit = has_vectors(p.out_strides, p.dims, p.shape[last]);
  for (int k = 0; k < kCount; ++k) {
    p.in[k] = Elements(inputs[k]);
    p.is_constant[k] = walk.is_constant(k + 1);
    for (int d = 0; d < p.dims; ++d) p.in_strides[k][d] = walk.strides(k + 1)[d];
    if (p.is_constant[k]) continue;
    dense = dense && walk.is_dense(k + 1);
    in_vectors = in_vectors && is_aligned(inputs[k], kVector);
    rows_fit = rows_fit && has_vectors(p.in_strides[k], p.dims, p.shape[last]);
  }
  const runtime::StreamHandle stream = current_stream_handle(y.device());
  const auto launch_strided = [&](auto n, auto index) {
    WEFT_LAUNCH((pointwise_strided_kernel<Access, kCount, n(), decltype(index), F>),
                blocks_for(p.numel, kThreads), kThreads, 0, stream, p, f);
  };
  using One = std::integral_constant<int, 1>;
  using Several = std::integral_constant<int, kVector>;
  if (dense && in_vectors) {
    WEFT_LAUNCH((pointwise_dense_kernel<Access, kCount, F>),
                blocks_for(p.numel, kThreads * kVector), kThreads, 0, stream, p, f);
  } else if (p.numel >= int64_t{1} << 31) {
    launch_strided(One(), uint64_t());
  } else if (rows_fit && in_vectors) {
    p.numel /= kVector;
    p.shape[last] /= kVector;
    p.out_strides[last] *= kVector;
    for (auto& strides : p.in_strides) strides[last] *= kVector;
    launch_strided(Several(), uint32_t());
  } else {
    launch_strided(One(), uint32_t());
  }
}

/// Calls f(Access()) with the Bits of a dtype's size.
template <class F>
void with_bits(DType dtype, F&& f) {
  with_word(itemsize(dtype), [&](auto word) { f(Bits<decltype(word)>()); });
}

/// Calls f(Access()) with Arithmetic of f64, f32 or i64.
template <class F>
void with_arithmetic(DType type, F&& f) {
  switch (type) {
    case DType::f64:
      return f(Arithmetic<double>());
    case DType::f32:
      return f(Arithmetic<float>());
    default:
      return f(Arithmetic<int64_t>());
  }
}

}  // namespace weft::kernels
