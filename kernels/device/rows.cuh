// Rows of a matrix held in a warp's registers: what softmax, layer norm and cross-entropy are made
// of.
//
// Lane l of a warp holds the vectors l, l + 32, l + 64, ... of a row: kSteps vectors of kVector
// elements, so rows of up to 32 kSteps kVector elements are read once and each access of the warp
// is one stretch of memory. Rows whose length or place does not allow vectors are read element by
// element (kVector = 1).
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
};

template <class Acc, int kVector, int kSteps>
struct WarpRow {
  static constexpr int kCount = kVector * kSteps;
  Acc values[kSteps][kVector];

  /// Calls f(value, column) for this lane's elements of a row of n.
  template <class F>
  __device__ __forceinline__ void for_each(int64_t n, F f) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int64_t column = static_cast<int64_t>(s * kWarp + lane) * kVector;
      if (column < n) {
#pragma unroll
        for (int k = 0; k < kVector; ++k) f(values[s][k], column + k);
      }
    }
  }

  /// Elements beyond the row are not touched.
  __device__ __forceinline__ void read(const RowElements& from, int64_t row, int64_t n) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int64_t column = static_cast<int64_t>(s * kWarp + lane) * kVector;
      if (column < n) load(from.elements, row * from.stride + column, values[s]);
    }
  }

  __device__ __forceinline__ void write(const RowElements& to, int64_t row, int64_t n) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int64_t column = static_cast<int64_t>(s * kWarp + lane) * kVector;
      if (column < n) store(to.elements, row * to.stride + column, values[s]);
    }
  }

  /// The sum of f(value, column) over the row, in all lanes.
  template <class F>
  __device__ __forceinline__ Acc sum(int64_t n, F f) {
    Acc total = 0;
    for_each(n, [&](Acc& x, int64_t column) { total += f(x, column); });
    return warp_sum(total);
  }
};

template <int n>
using Int = std::integral_constant<int, n>;

/// Whether vectors of 8 fit rows of n elements of the tensors.
inline bool rows_fit_vectors(int64_t n, std::initializer_list<Tensor> tensors) {
  return n % 8 == 0 &&
         std::ranges::all_of(tensors, [](const Tensor& t) { return is_aligned(t, 8); });
}

/// Calls f(Int<kVector>, Int<kSteps>) with the smallest tile of registers that holds a row; false
/// when none does.
template <class F>
bool with_row_tile(int64_t n, bool vectors, F&& f) {
  if (vectors) {
    if (n <= 256) return f(Int<8>(), Int<1>()), true;
    if (n <= 768) return f(Int<8>(), Int<3>()), true;
    if (n <= 1024) return f(Int<8>(), Int<4>()), true;
    if (n <= 3072) return f(Int<8>(), Int<12>()), true;
    return false;
  }
  if (n <= 64) return f(Int<1>(), Int<2>()), true;
  if (n <= 256) return f(Int<1>(), Int<8>()), true;
  if (n <= 1024) return f(Int<1>(), Int<32>()), true;
  return false;
}

/// Elements of a lane's share of a row of which a thread holds two: 2 x 32 of 255 registers.
inline constexpr int kMostForTwoRows = 32;

/// Warps of a block whose warps take rows each for itself.
inline constexpr int kRowWarps = 4;

}  // namespace weft::kernels
