// Elements of any dtype in registers: loads that widen to the type of the arithmetic, stores that
// round once. The dtype is a run-time value, equal in all threads, so that one kernel serves every
// mixture of dtypes: the branch costs a few instructions per vector of elements.
//
//   float x[8];
//   load(elements, i, x);                  // elements i .. i + 8, which lie aligned
//   store(result, i, x);
//
// Conversions are those of kernels/copy/copy.h, but that a NaN becomes the format's canonical one
// on a GPU: values are the same, payloads are not kept.
#pragma once

#include "core/tensor.h"
#include "kernels/device/cuda.h"
#include "kernels/elementwise/convert_element.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace weft::kernels {

/// Memory of elements and their dtype; null where there is no tensor.
struct ElementMemory {
  void* data = nullptr;
  DType dtype = DType::f32;

  ElementMemory() = default;
  explicit ElementMemory(const Tensor& tensor)
      : data(tensor.defined() ? tensor.raw() : nullptr),
        dtype(tensor.defined() ? tensor.dtype() : DType::f32) {}
  __host__ __device__ explicit operator bool() const { return data != nullptr; }
};

/// Elements of any dtype.
struct Elements : ElementMemory {
  using ElementMemory::ElementMemory;
};

/// Elements of the types that training computes in: f32, f16 or bf16 where the arithmetic is in
/// float, f64 where it is in double. Their loads and stores are a third of the code.
struct Numbers : ElementMemory {
  using ElementMemory::ElementMemory;
};

/// n elements moved as one access; its address is a multiple of its size.
template <class T, int n>
struct alignas(sizeof(T) * n <= 16 ? sizeof(T) * n : 16) Pack {
  T values[n];
};

#ifdef __CUDA_ARCH__
__device__ __forceinline__ float widen(f16 x) { return __half2float(__ushort_as_half(x.bits)); }
__device__ __forceinline__ float widen(bf16 x) { return static_cast<float>(x); }
template <class T>
__device__ __forceinline__ T narrow(float x);
template <>
__device__ __forceinline__ f16 narrow<f16>(float x) {
  return f16::from_bits(__half_as_ushort(__float2half_rn(x)));
}
template <>
__device__ __forceinline__ bf16 narrow<bf16>(float x) {
  return bf16::from_bits(__bfloat16_as_ushort(__float2bfloat16_rn(x)));
}
#else
inline float widen(f16 x) { return static_cast<float>(x); }
inline float widen(bf16 x) { return static_cast<float>(x); }
template <class T>
T narrow(float x) {
  return T(x);
}
#endif

namespace elements {

template <class T, class Acc>
__device__ __forceinline__ Acc to_arithmetic(T x) {
  if constexpr (std::is_same_v<Acc, float> && (std::is_same_v<T, f16> || std::is_same_v<T, bf16>)) {
    return widen(x);
  } else {
    return convert_element<T, Acc>(x);
  }
}

template <class T, class Acc>
__device__ __forceinline__ T from_arithmetic(Acc x) {
  if constexpr (std::is_same_v<Acc, float> && (std::is_same_v<T, f16> || std::is_same_v<T, bf16>)) {
    return narrow<T>(x);
  } else {
    return convert_element<Acc, T>(x);
  }
}

template <class T, int n, class Acc>
__device__ __forceinline__ void load_as(const void* data, int64_t i, Acc (&x)[n]) {
  constexpr int kPack = sizeof(T) * n <= 16 ? n : 16 / sizeof(T);
  const auto* packs = reinterpret_cast<const Pack<T, kPack>*>(static_cast<const T*>(data) + i);
#pragma unroll
  for (int p = 0; p < n / kPack; ++p) {
    const Pack<T, kPack> pack = packs[p];
#pragma unroll
    for (int k = 0; k < kPack; ++k) x[p * kPack + k] = to_arithmetic<T, Acc>(pack.values[k]);
  }
}

template <class T, int n, class Acc>
__device__ __forceinline__ void store_as(void* data, int64_t i, const Acc (&x)[n]) {
  constexpr int kPack = sizeof(T) * n <= 16 ? n : 16 / sizeof(T);
  auto* packs = reinterpret_cast<Pack<T, kPack>*>(static_cast<T*>(data) + i);
#pragma unroll
  for (int p = 0; p < n / kPack; ++p) {
    Pack<T, kPack> pack;
#pragma unroll
    for (int k = 0; k < kPack; ++k) pack.values[k] = from_arithmetic<T, Acc>(x[p * kPack + k]);
    packs[p] = pack;
  }
}

/// Calls f with a zero of the C++ type of a dtype that training does not compute in.
template <class F>
__device__ __forceinline__ auto with_rare_type(DType dtype, F f) {
  switch (dtype) {
    case DType::tf32:
      return f(tf32{});
    case DType::f8e4m3:
      return f(f8e4m3{});
    case DType::f8e5m2:
      return f(f8e5m2{});
    case DType::i64:
      return f(int64_t{});
    case DType::i32:
      return f(int32_t{});
    case DType::u8:
      return f(uint8_t{});
    default:
      return f(bool{});
  }
}

/// One element of such a dtype; bool is a byte.
template <class T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;

template <class Acc>
__device__ WEFT_NOINLINE Acc load_rare(const void* data, DType dtype, int64_t i) {
  return with_rare_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    return convert_element<T, Acc>(static_cast<const Stored<T>*>(data)[i]);
  });
}

template <class Acc>
__device__ WEFT_NOINLINE void store_rare(void* data, DType dtype, int64_t i, Acc x) {
  with_rare_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    static_cast<Stored<T>*>(data)[i] = convert_element<Acc, T>(x);
  });
}

}  // namespace elements

/// x[k] = element i + k. More than one: i, and the address of element 0, are multiples of n
/// elements or of 16 bytes.
template <int n, class Acc>
__device__ __forceinline__ void load(const Elements& from, int64_t i, Acc (&x)[n]) {
  switch (from.dtype) {
    case DType::f32:
      return elements::load_as<float, n>(from.data, i, x);
    case DType::bf16:
      return elements::load_as<bf16, n>(from.data, i, x);
    case DType::f16:
      return elements::load_as<f16, n>(from.data, i, x);
    case DType::f64:
      return elements::load_as<double, n>(from.data, i, x);
    default:
#pragma unroll
      for (int k = 0; k < n; ++k) x[k] = elements::load_rare<Acc>(from.data, from.dtype, i + k);
  }
}

template <int n, class Acc>
__device__ __forceinline__ void store(const Elements& to, int64_t i, const Acc (&x)[n]) {
  switch (to.dtype) {
    case DType::f32:
      return elements::store_as<float, n>(to.data, i, x);
    case DType::bf16:
      return elements::store_as<bf16, n>(to.data, i, x);
    case DType::f16:
      return elements::store_as<f16, n>(to.data, i, x);
    case DType::f64:
      return elements::store_as<double, n>(to.data, i, x);
    default:
#pragma unroll
      for (int k = 0; k < n; ++k) elements::store_rare(to.data, to.dtype, i + k, x[k]);
  }
}

template <int n>
__device__ __forceinline__ void load(const Numbers& from, int64_t i, float (&x)[n]) {
  switch (from.dtype) {
    case DType::bf16:
      return elements::load_as<bf16, n>(from.data, i, x);
    case DType::f16:
      return elements::load_as<f16, n>(from.data, i, x);
    default:
      return elements::load_as<float, n>(from.data, i, x);
  }
}
template <int n>
__device__ __forceinline__ void load(const Numbers& from, int64_t i, double (&x)[n]) {
  elements::load_as<double, n>(from.data, i, x);
}

template <int n>
__device__ __forceinline__ void store(const Numbers& to, int64_t i, const float (&x)[n]) {
  switch (to.dtype) {
    case DType::bf16:
      return elements::store_as<bf16, n>(to.data, i, x);
    case DType::f16:
      return elements::store_as<f16, n>(to.data, i, x);
    default:
      return elements::store_as<float, n>(to.data, i, x);
  }
}
template <int n>
__device__ __forceinline__ void store(const Numbers& to, int64_t i, const double (&x)[n]) {
  elements::store_as<double, n>(to.data, i, x);
}

/// Memory: Elements or Numbers.
template <class Acc, class Memory>
__device__ __forceinline__ Acc load_one(const Memory& from, int64_t i) {
  Acc x[1];
  load(from, i, x);
  return x[0];
}

template <class Acc, class Memory>
__device__ __forceinline__ void store_one(const Memory& to, int64_t i, Acc x) {
  const Acc values[1] = {x};
  store(to, i, values);
}

/// x as a tensor of that dtype would hold it; of f32 and f64 the arithmetic itself.
template <class Acc>
__device__ __forceinline__ Acc rounded_to(DType dtype, Acc x) {
  switch (dtype) {
    case DType::bf16:
      return elements::to_arithmetic<bf16, Acc>(elements::from_arithmetic<bf16>(x));
    case DType::f16:
      return elements::to_arithmetic<f16, Acc>(elements::from_arithmetic<f16>(x));
    default:
      return x;
  }
}

/// Whether vectors of n elements of the tensor may be loaded at multiples of n from its first.
inline bool is_aligned(const Tensor& tensor, int n) {
  if (!tensor.defined()) return true;
  const size_t bytes = std::min<size_t>(16, n * tensor.itemsize());
  return reinterpret_cast<uintptr_t>(tensor.raw()) % bytes == 0;
}

}  // namespace weft::kernels
