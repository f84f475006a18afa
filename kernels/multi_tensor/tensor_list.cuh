// Lists of tensors as arguments of one kernel: a chunk of some tensor for each block, without a
// table in device memory, so that nothing is copied at a launch and a CUDA graph keeps working.
//
// A kernel may have 32,764 bytes of parameters (CUDA 12.1 and compute capability 7.0 on): a launch
// takes as many tensors as fit, a longer list several launches.
#pragma once

#include <span>
#include <type_traits>

#include "kernels/device/elements.cuh"
#include "kernels/device/warp.cuh"

namespace weft::kernels {

inline constexpr int64_t kListChunk = 4096;  // elements of a block
inline constexpr int kListThreads = 256;

/// Per tensor: its chunks begin at block first_chunk; Fields are the pointers that the kernel
/// wants.
template <class Fields>
struct ListEntry {
  Fields fields;
  int64_t numel;
  uint32_t first_chunk;
};

template <class Fields>
struct TensorList {
  static constexpr int kCapacity = (32764 - 512) / static_cast<int>(sizeof(ListEntry<Fields>));
  int count = 0;
  uint32_t chunks = 0;
  ListEntry<Fields> entries[kCapacity];

  /// The tensor of a chunk: the last one that does not begin behind it.
  __device__ const ListEntry<Fields>& of_chunk(uint32_t chunk) const {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (entries[middle].first_chunk <= chunk) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return entries[low];
  }
};

/// The elements of one tensor that a block works on.
struct Chunk {
  int64_t begin, end;
};

template <class Fields>
__device__ Chunk chunk_of(const ListEntry<Fields>& entry, uint32_t chunk) {
  const int64_t begin = static_cast<int64_t>(chunk - entry.first_chunk) * kListChunk;
  return {begin, begin + kListChunk < entry.numel ? begin + kListChunk : entry.numel};
}

/// A number of elements, as an argument that the compiler knows.
template <int n>
using Width = std::integral_constant<int, n>;

/// The walk of a block of kListThreads over its chunk: each thread calls f(Width<n>(), i) for
/// elements i .. i + n, n being kVector where vectors are allowed and the chunk has a whole one
/// left, else 1.
template <int kVector, class F>
__device__ __forceinline__ void for_chunk_elements(const Chunk& chunk, bool aligned, F&& f) {
  int64_t i = chunk.begin;
  if (aligned) {
    const int64_t whole = chunk.begin + (chunk.end - chunk.begin) / kVector * kVector;
    for (i += threadIdx.x * kVector; i < whole; i += kListThreads * kVector) {
      f(Width<kVector>(), i);
    }
    i = whole;
  }
  for (i += threadIdx.x; i < chunk.end; i += kListThreads) f(Width<1>(), i);
}

/// The type of the arithmetic on elements that are stored as T.
template <class T>
using ArithmeticOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Calls f with a zero of the type that elements of f64, f32, f16 or bf16 are stored as.
template <class F>
void with_stored_zero(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64:
      return f(double{});
    case DType::f16:
      return f(f16{});
    case DType::bf16:
      return f(bf16{});
    default:
      return f(float{});
  }
}

/// The rounded values x of elements i .. i + n of a narrow copy, where there is one.
template <class Acc, int n>
__device__ __forceinline__ void store_narrow(const Numbers& copy, int64_t i, const Acc (&x)[n]) {
  if (!copy) return;
  if (copy.dtype == DType::bf16) {
    elements::store_as<bf16, n>(copy.data, i, x);
  } else {
    elements::store_as<f16, n>(copy.data, i, x);
  }
}

/// The sum of what the chunks left, by one block of kThreads: each thread adds every kThreads-th in
/// order.
template <int kThreads>
__device__ double sum_of_chunks(const double* sums, int64_t count) {
  double total = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) total += sums[i];
  return block_sum<kThreads>(total);
}

inline int64_t count_chunks(std::span<const Tensor> tensors) {
  int64_t chunks = 0;
  for (const Tensor& t : tensors) chunks += (t.numel() + kListChunk - 1) / kListChunk;
  return chunks;
}

/// Calls launch(list, first_chunk) for lists that together hold each non-empty tensor once, in
/// order; fields(i) gives the pointers of tensor i. first_chunk: chunks of the lists before.
template <class Fields, class MakeFields, class Launch>
void for_each_list(std::span<const Tensor> tensors, MakeFields&& fields, Launch&& launch) {
  auto list = std::make_unique<TensorList<Fields>>();
  uint32_t first_chunk = 0;
  const auto flush = [&] {
    if (list->count > 0) launch(*list, first_chunk);
    first_chunk += list->chunks;
    list->count = 0;
    list->chunks = 0;
  };
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t numel = tensors[i].numel();
    if (numel == 0) continue;
    if (list->count == TensorList<Fields>::kCapacity) flush();
    list->entries[list->count++] = {fields(i), numel, list->chunks};
    list->chunks += static_cast<uint32_t>((numel + kListChunk - 1) / kListChunk);
  }
  flush();
}

}  // namespace weft::kernels
