// A gemm problem as CUDA kernels see it, and the end that all rungs share: what happens to a sum
// before it is stored.
#pragma once

#include "kernels/device/elements.cuh"
#include "kernels/device/math.cuh"
#include "kernels/gemm/gemm.h"

namespace weft::kernels {

/// An operand: strides in elements; those of the batch dimensions outermost first.
struct GemmOperand {
  Elements elements;
  int64_t row = 0, column = 0;
  int64_t batch[kMaxDims] = {};

  GemmOperand() = default;
  explicit GemmOperand(const Tensor& t) : elements(t) {
    if (!t.defined()) return;
    const int dims = t.dim();
    if (dims == 1) {  // a bias
      column = t.strides()[0];
      return;
    }
    row = t.strides()[dims - 2];
    column = t.strides()[dims - 1];
    for (int d = 0; d + 2 < dims; ++d) batch[d] = t.strides()[d];
  }
};

namespace gemm_rows {

template <class T, int n, class Acc>
__device__ __forceinline__ void load_as(const void* data, int64_t i, int64_t stride, int count,
                                        Acc (&x)[n]) {
  const T* const from = static_cast<const T*>(data) + i;
  T values[n] = {};
#pragma unroll
  for (int r = 0; r < n; ++r) {
    if (r < count) values[r] = from[r * stride];
  }
#pragma unroll
  for (int r = 0; r < n; ++r) x[r] = elements::to_arithmetic<T, Acc>(values[r]);
}

/// x[r] = element i + r stride for r < count, else 0: all loads are under way before the first is
/// waited for.
template <int n, class Acc>
__device__ __forceinline__ void load(const Elements& from, int64_t i, int64_t stride, int count,
                                     Acc (&x)[n]) {
  switch (from.dtype) {
    case DType::bf16:
      return load_as<bf16>(from.data, i, stride, count, x);
    case DType::f16:
      return load_as<f16>(from.data, i, stride, count, x);
    default:
      return load_as<Acc>(from.data, i, stride, count, x);
  }
}

template <int n, class Acc>
__device__ __forceinline__ void store(const Elements& to, int64_t i, int64_t stride, int count,
                                      const Acc (&x)[n]) {
#pragma unroll
  for (int r = 0; r < n; ++r) {
    if (r < count) store_one(to, i + r * stride, x[r]);
  }
}

}  // namespace gemm_rows

struct GemmArguments {
  GemmOperand a, b, c, aux, bias, residual;
  int64_t m = 0, n = 0, k = 0, batches = 1;
  int batch_dims = 0;
  int64_t batch_sizes[kMaxDims] = {};
  Epilogue epilogue = Epilogue::kNone;
  bool accumulate = false;
  float scale = 1;            // of the products; fp8 only
  bool sums_columns = false;  // finish() returns what it stored

  GemmArguments() = default;
  explicit GemmArguments(const GemmProblem& p)
      : a(p.a),
        b(p.b),
        c(p.c),
        aux(p.aux),
        bias(p.bias),
        residual(p.residual),
        m(p.m()),
        n(p.n()),
        k(p.k()),
        batch_dims(p.c.dim() - 2),
        epilogue(p.epilogue),
        accumulate(p.accumulate),
        scale(static_cast<float>(p.scale)),
        sums_columns(p.bias_gradient.defined()) {
    for (int d = 0; d < batch_dims; ++d) {
      batch_sizes[d] = p.c.shape()[d];
      batches *= batch_sizes[d];
    }
  }

  /// Offset of the operand's matrix of a batch index.
  __device__ int64_t base(const GemmOperand& t, int64_t index) const {
    int64_t offset = 0;
    for (int d = batch_dims - 1; d >= 0; --d) {
      offset += index % batch_sizes[d] * t.batch[d];
      index /= batch_sizes[d];
    }
    return offset;
  }

  /// Where the matrices of one batch index begin in c, aux and residual.
  struct Output {
    int64_t c, aux, residual;
  };
  __device__ Output output(int64_t index) const {
    return {base(c, index), base(aux, index), base(residual, index)};
  }

  /// Stores what the sums of products at (row + r, column), r < count, become. Where columns are
  /// summed, sums[r] is then the value as it was rounded, 0 from count on.
  template <int n, class Acc>
  __device__ __forceinline__ void finish_rows(const Output& at, int64_t row, int count,
                                              int64_t column_index, Acc (&sums)[n]) const {
    const int64_t to = at.c + row * c.row + column_index * c.column;
    Acc other[n];
    const auto add = [&] {
#pragma unroll
      for (int r = 0; r < n; ++r) sums[r] += other[r];
    };
#pragma unroll
    for (int r = 0; r < n; ++r) sums[r] *= static_cast<Acc>(scale);
    if (bias.elements) {
      const Acc shift = load_one<Acc>(bias.elements, column_index * bias.column);
#pragma unroll
      for (int r = 0; r < n; ++r) sums[r] += shift;
    }
    if (accumulate) {
      gemm_rows::load(c.elements, to, c.row, count, other);
      add();
    }
    if (residual.elements) {
      gemm_rows::load(residual.elements,
                      at.residual + row * residual.row + column_index * residual.column,
                      residual.row, count, other);
      add();
    }
    if (epilogue != Epilogue::kNone) {
      const int64_t x = at.aux + row * aux.row + column_index * aux.column;
      if (epilogue == Epilogue::kGelu) {
        gemm_rows::store(aux.elements, x, aux.row, count, sums);
        // Of the pre-activation as it was rounded.
#pragma unroll
        for (int r = 0; r < n; ++r) {
          sums[r] = gelu_erf(rounded_to(aux.elements.dtype, sums[r]));
        }
      } else {
        gemm_rows::load(aux.elements, x, aux.row, count, other);
        // The product is rounded before the multiplication, too.
#pragma unroll
        for (int r = 0; r < n; ++r) {
          sums[r] = rounded_to(c.elements.dtype, sums[r]) * gelu_erf_derivative(other[r]);
        }
      }
    }
    gemm_rows::store(c.elements, to, c.row, count, sums);
    if (!sums_columns) return;
#pragma unroll
    for (int r = 0; r < n; ++r) {
      sums[r] = r < count ? rounded_to(c.elements.dtype, sums[r]) : Acc(0);
    }
  }

  /// The same for one element; returns it as it was rounded where columns are summed.
  template <class Acc>
  __device__ WEFT_NOINLINE Acc finish(const Output& at, int64_t row, int64_t column_index,
                                      Acc sum) const {
    Acc sums[1] = {sum};
    finish_rows(at, row, 1, column_index, sums);
    return sums[0];
  }
};

/// Blocks along z for a batch; a kernel strides over the rest.
inline unsigned grid_batches(int64_t batches) {
  constexpr int64_t kMaxGridZ = 65535;
  return static_cast<unsigned>(std::min(batches, kMaxGridZ));
}

__host__ __device__ inline unsigned tiles(int64_t n, int64_t tile) {
  return static_cast<unsigned>((n + tile - 1) / tile);
}

/// Blocks for C's tiles, all along x, row after row: along y there could be 65535. `along_z` blocks
/// each.
inline dim3 tile_grid(const GemmArguments& p, int64_t rows, int64_t columns, int64_t along_z) {
  const uint64_t count = uint64_t{tiles(p.m, rows)} * tiles(p.n, columns);
  WEFT_CHECK(count < uint64_t{1} << 31, "gemm: {} tiles of {} x {} are more than a grid has", count,
             rows, columns);
  return {static_cast<unsigned>(count), 1, grid_batches(along_z)};
}
/// The tile of a block of that grid.
struct BlockTile {
  unsigned row, column;

  __device__ BlockTile(const GemmArguments& p, int64_t columns)
      : row(blockIdx.x / tiles(p.n, columns)), column(blockIdx.x % tiles(p.n, columns)) {}
};

}  // namespace weft::kernels
