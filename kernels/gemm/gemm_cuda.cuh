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

struct GemmArguments {
  GemmOperand a, b, c, aux, bias, residual;
  int64_t m = 0, n = 0, k = 0, batches = 1;
  int batch_dims = 0;
  int64_t batch_sizes[kMaxDims] = {};
  Epilogue epilogue = Epilogue::none;
  bool accumulate = false;
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

  /// Stores what the sum of products at (row, column) becomes, and returns it as it was rounded
  /// where columns are summed (0 elsewhere).
  template <class Acc>
  __device__ WEFT_NOINLINE Acc finish(const Output& at, int64_t row, int64_t column_index,
                                      Acc sum) const {
    const int64_t to = at.c + row * c.row + column_index * c.column;
    if (bias.elements) sum += load_one<Acc>(bias.elements, column_index * bias.column);
    if (accumulate) sum += load_one<Acc>(c.elements, to);
    if (residual.elements) {
      sum += load_one<Acc>(residual.elements,
                           at.residual + row * residual.row + column_index * residual.column);
    }
    if (epilogue != Epilogue::none) {
      const int64_t x = at.aux + row * aux.row + column_index * aux.column;
      if (epilogue == Epilogue::gelu) {
        store_one(aux.elements, x, sum);
        sum = gelu_erf(load_one<Acc>(aux.elements, x));  // of the pre-activation as it was rounded
      } else {
        // The product is rounded before the multiplication, too.
        store_one(c.elements, to, sum);
        sum = load_one<Acc>(c.elements, to) * gelu_erf_derivative(load_one<Acc>(aux.elements, x));
      }
    }
    store_one(c.elements, to, sum);
    return sums_columns ? load_one<Acc>(c.elements, to) : Acc(0);
  }
};

/// Blocks along z for a batch; a kernel strides over the rest.
inline unsigned grid_batches(int64_t batches) {
  constexpr int64_t kMaxGridZ = 65535;
  return static_cast<unsigned>(std::min(batches, kMaxGridZ));
}

inline unsigned tiles(int64_t n, int64_t tile) {
  return static_cast<unsigned>((n + tile - 1) / tile);
}

}  // namespace weft::kernels
