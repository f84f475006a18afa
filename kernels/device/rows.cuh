// Rows of a matrix held in a warp's registers: what softmax, layer norm and cross-entropy are made
// of.
//
// Lane l of a warp holds the vectors l, l + 32, l + 64, ... of a row: kSteps vectors of kVector
// elements, so that each access of the warp is one stretch of memory. Rows whose length or place
// does not allow vectors are read element by element (kVector = 1).
#pragma once

#include "kernels/device/elements.cuh"
#include "kernels/device/warp.cuh"

namespace weft::kernels {

/// Rows of n elements that lie side by side, `stride` elements apart.
struct RowElements {
  Numbers elements;
  int64_t stride = 0;

  RowElements() = default;
  /// A contiguous [..., n], or nothing.
  RowElements(const Tensor& tensor, int64_t n) : elements(tensor), stride(n) {}
  __host__ __device__ explicit operator bool() const { return static_cast<bool>(elements); }

  template <class Acc>
  __device__ __forceinline__ Acc at(int64_t row, int64_t column) const {
    return load_one<Acc>(elements, row * stride + column);
  }
  template <class Acc>
  __device__ __forceinline__ void put(int64_t row, int64_t column, Acc x) const {
    store_one(elements, row * stride + column, x);
  }
};

/// Warps of a block whose warps take rows each for itself.
inline constexpr int kRowWarps = 4, kRowThreads = kRowWarps * kWarp;

/// Calls f(row) for the rows of this thread's warp.
template <class F>
__device__ __forceinline__ void for_each_row(int64_t rows, F f) {
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kRowWarps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp; row < rows;
       row += warps) {
    f(row);
  }
}

/// A warp's row in its registers.
template <class Acc, int kVector, int kSteps>
struct WarpRow {
  using Vector = Acc[kVector];
  Vector values[kSteps];

  /// Calls f(step, column) for this lane's vectors of a row of n.
  template <class F>
  static __device__ __forceinline__ void for_each_step(int64_t n, F f) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int64_t column = static_cast<int64_t>(s * kWarp + lane) * kVector;
      if (column < n) f(s, column);
    }
  }
  /// Calls f(value, column) for this lane's elements of a row of n.
  template <class F>
  __device__ __forceinline__ void for_each(int64_t n, F f) {
    for_each_step(n, [&](int s, int64_t column) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) f(values[s][k], column + k);
    });
  }

  /// Elements beyond the row are not touched.
  __device__ __forceinline__ void read(const RowElements& from, int64_t row, int64_t n) {
    for_each_step(n, [&](int s, int64_t column) {
      load(from.elements, row * from.stride + column, values[s]);
    });
  }
  __device__ __forceinline__ void write(const RowElements& to, int64_t row, int64_t n) const {
    for_each_step(
        n, [&](int s, int64_t column) { store(to.elements, row * to.stride + column, values[s]); });
  }

  /// The sum of f(value, column) over the row, in all lanes.
  template <class F>
  __device__ __forceinline__ Acc sum(int64_t n, F f) {
    Acc total = 0;
    for_each(n, [&](Acc& x, int64_t column) { total += f(x, column); });
    return warp_sum(total);
  }
};

/// x[k] = f(x[k], element i + k of `from`), where there is such memory.
template <int n, class Acc, class F>
__device__ __forceinline__ void join_vector(Acc (&x)[n], const Numbers& from, int64_t i, F f) {
  if (!from) return;
  Acc y[n];
  load(from, i, y);
#pragma unroll
  for (int k = 0; k < n; ++k) x[k] = f(x[k], y[k]);
}

template <int n>
using Int = std::integral_constant<int, n>;

/// Whether vectors of 8 fit rows of n elements of the tensors.
inline bool rows_fit_vectors(int64_t n, std::initializer_list<Tensor> tensors) {
  return n % 8 == 0 &&
         std::ranges::all_of(tensors, [](const Tensor& t) { return is_aligned(t, 8); });
}

/// Elements of a lane's share of a row of which a thread holds two: 2 x 32 of 255 registers.
inline constexpr int kMostForTwoRows = 32, kMostForOneRow = 96;

/// Calls f(Int<kVector>, Int<kSteps>) with the smallest tile of registers that holds a row, of at
/// most kMost elements for each lane; false when none does.
template <int kMost, class F>
bool with_row_tile(int64_t n, bool vectors, F&& f) {
  const auto fits = [&](auto vector, auto steps) {
    if constexpr (vector() * steps() <= kMost) {
      if (n <= vector() * steps() * kWarp) return f(vector, steps), true;
    }
    return false;
  };
  if (vectors) {
    return fits(Int<8>(), Int<1>()) || fits(Int<8>(), Int<3>()) || fits(Int<8>(), Int<4>()) ||
           fits(Int<8>(), Int<12>());
  }
  return fits(Int<1>(), Int<2>()) || fits(Int<1>(), Int<8>()) || fits(Int<1>(), Int<32>());
}

/// Threads of a block that takes a row of any length, reading it as often as it needs.
inline constexpr int kLongRowThreads = 256;

/// Calls f(Int<k>(), i) for the k elements from i on, until this thread of kLongRowThreads has had
/// its share of a row of n. With `vectors`, rows may begin anywhere in memory that is_aligned() to
/// 8, this one at its element `first`: 8 elements at a time, but for those before the first place
/// that they may be read from and those behind the last.
template <class F>
__device__ __forceinline__ void for_each_long_step(int64_t first, int64_t n, bool vectors, F f) {
  constexpr int kVector = 8;
  const int64_t before = -first & (kVector - 1);
  const int64_t head = vectors && before < n ? before : n;
  const int64_t steps = (n - head) / kVector;
  for (int64_t s = threadIdx.x; s < steps; s += kLongRowThreads) {
    f(Int<kVector>(), head + s * kVector);
  }
#pragma unroll 1
  for (int64_t i = threadIdx.x; i < n - steps * kVector; i += kLongRowThreads) {
    f(Int<1>(), i < head ? i : i + steps * kVector);
  }
}

/// A row's maximum, and the sum of the exponentials of what its elements lie below it.
template <class Acc>
struct Exponentials {
  Acc max, sum;
};

/// Those of a row, by a block, in all its threads. for_each(f) calls f(x) for arrays x of this
/// thread's elements; what was summed is scaled anew where a larger one comes (Milakov and
/// Gimelshein 2018, "Online normalizer calculation for softmax").
template <class Acc, class ForEach>
__device__ __forceinline__ Exponentials<Acc> long_row_exponentials(ForEach for_each) {
  // exp(x - shift) of -inf is 0, also where this thread has seen nothing larger.
  const auto shift_of = [](Acc max) { return max == -INFINITY ? Acc{0} : max; };
  const auto larger = [](Acc a, Acc b) { return a > b ? a : b; };
  Acc max = -INFINITY, sum = 0;
  for_each([&](const auto& x) {
    Acc next = max;
    for (const Acc element : x) next = larger(element, next);
    sum *= std::exp(max - shift_of(next));
    max = next;
    for (const Acc element : x) sum += std::exp(element - shift_of(max));
  });
  const Acc whole = block_join<kLongRowThreads>(max, larger);
  return {whole, block_sum<kLongRowThreads>(sum * std::exp(max - whole))};
}

/// The sum of f(i) over a row of n, by a block, in all its threads.
template <class Acc, class F>
__device__ __forceinline__ Acc long_row_sum(int64_t n, F f) {
  Acc total = 0;
  for (int64_t i = threadIdx.x; i < n; i += kLongRowThreads) total += f(i);
  return block_sum<kLongRowThreads>(total);
}

}  // namespace weft::kernels
