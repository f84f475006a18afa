// A warp per row with the row in its registers, read once and written once: rows of up to 3072
// elements (1024 where they do not fit vectors). Memory-bound; with 4 warps a block and 32 to 96
// registers of data a thread, an SM has enough loads in flight. Longer rows are a block's, which
// reads them twice.
#include "core/stream.h"
#include "core/view.h"
#include "kernels/copy/copy.h"
#include "kernels/device/instances.h"
#include "kernels/device/rows.cuh"
#include "kernels/softmax/softmax.h"

namespace weft::kernels {
namespace {

struct SoftmaxRows {
  RowElements x, y, dy, dx;
  int64_t rows, n;
  bool log;
  bool vectors;  // whether each tensor as a whole is aligned to 8 elements
};

template <class Acc, int kVector, int kSteps>
__global__ void __launch_bounds__(kRowThreads) softmax_kernel(SoftmaxRows p) {
  WarpRow<Acc, kVector, kSteps> x;
  for_each_row(p.rows, [&](int64_t row) {
    x.read(p.x, row, p.n);
    Acc max = -INFINITY;
    // Where an element is NaN the maximum may be any: the exponential makes the sum NaN.
    x.for_each(p.n, [&](Acc& v, int64_t) { max = v > max ? v : max; });
    max = warp_max(max);
    if (p.log) {
      const Acc total = x.sum(p.n, [&](Acc& v, int64_t) {
        v -= max;
        return std::exp(v);
      });
      const Acc log_total = std::log(total);
      x.for_each(p.n, [&](Acc& v, int64_t) { v -= log_total; });
    } else {
      const Acc total = x.sum(p.n, [&](Acc& v, int64_t) { return v = std::exp(v - max); });
      const Acc scale = 1 / total;
      x.for_each(p.n, [&](Acc& v, int64_t) { v *= scale; });
    }
    x.write(p.y, row, p.n);
  });
}

/// dx of one element, given dy, y and the sum over the row of dy, or of dy y.
template <class Acc>
__device__ __forceinline__ Acc softmax_dx(bool log, Acc dy, Acc y, Acc total) {
  return log ? dy - std::exp(y) * total : y * (dy - total);
}

template <class Acc, int kVector, int kSteps>
__global__ void __launch_bounds__(kRowThreads) softmax_backward_kernel(SoftmaxRows p) {
  using Row = WarpRow<Acc, kVector, kSteps>;
  Row dy, y;
  for_each_row(p.rows, [&](int64_t row) {
    dy.read(p.dy, row, p.n);
    y.read(p.y, row, p.n);
    Acc total = 0;
    Row::for_each_step(p.n, [&](int s, int64_t) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        total += p.log ? dy.values[s][k] : dy.values[s][k] * y.values[s][k];
      }
    });
    total = warp_sum(total);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        dy.values[s][k] = softmax_dx(p.log, dy.values[s][k], y.values[s][k], total);
      }
    }
    dy.write(p.dx, row, p.n);
  });
}

template <class Acc>
__global__ void __launch_bounds__(kLongRowThreads, 2) softmax_long_kernel(SoftmaxRows p) {
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const int64_t first = row * p.n;
    // Calls f(place, array of the elements there) for what is this thread's of a tensor.
    const auto for_each = [&](const RowElements& from, auto f) {
      for_each_long_step(first, p.n, p.vectors, [&](auto count, int64_t i) {
        Acc x[count()];
        load(from.elements, first + i, x);
        f(first + i, x);
      });
    };
    if (p.dx) {
      Acc total = 0;
      for_each(p.dy, [&](int64_t i, auto& dy) {
        std::remove_reference_t<decltype(dy)> y;
        if (!p.log) load(p.y.elements, i, y);
        for (size_t k = 0; k < std::size(dy); ++k) total += p.log ? dy[k] : dy[k] * y[k];
      });
      total = block_sum<kLongRowThreads>(total);
      for_each(p.dy, [&](int64_t i, auto& dy) {
        std::remove_reference_t<decltype(dy)> y;
        load(p.y.elements, i, y);
        for (size_t k = 0; k < std::size(dy); ++k) dy[k] = softmax_dx(p.log, dy[k], y[k], total);
        store(p.dx.elements, i, dy);
      });
      continue;
    }
    const Exponentials<Acc> all = long_row_exponentials<Acc>(
        [&](auto f) { for_each(p.x, [&](int64_t, const auto& x) { f(x); }); });
    const Acc log_total = std::log(all.sum), scale = 1 / all.sum;
    for_each(p.x, [&](int64_t i, auto& x) {
      for (Acc& element : x) {
        element -= all.max;
        element = p.log ? element - log_total : std::exp(element) * scale;
      }
      store(p.y.elements, i, x);
    });
  }
}

/// Rows of f32 arithmetic that fit registers; false for others.
bool run_in_registers(const SoftmaxRows& p, runtime::StreamHandle stream) {
  const bool vectors = p.vectors && p.n % 8 == 0;
  const unsigned grid = blocks_for(p.rows, kRowWarps);
  if (p.dx) {
    return with_row_tile<kMostForTwoRows>(p.n, vectors, [&](auto vector, auto steps) {
      WEFT_LAUNCH((softmax_backward_kernel<float, vector(), steps()>), grid, kRowThreads, 0, stream,
                  p);
    });
  }
  return with_row_tile<kMostForOneRow>(p.n, vectors, [&](auto vector, auto steps) {
    WEFT_LAUNCH((softmax_kernel<float, vector(), steps()>), grid, kRowThreads, 0, stream, p);
  });
}

}  // namespace

void softmax_cuda_rows(const SoftmaxProblem& p) {
  if (p.y.numel() == 0) return;
  const int axis = wrap_dim(p.axis, p.y.dim(), "softmax");
  // Rows along the last dimension, side by side: other layouts pass through a copy.
  const auto with_rows_last = [&](const Tensor& t) {
    return view::transpose(t, axis, t.dim() - 1);
  };
  const auto rows_of = [&](const Tensor& t) {
    return t.defined() ? contiguous(with_rows_last(t)) : t;
  };
  const Tensor target = with_rows_last(p.backward() ? p.dx : p.y);
  const Tensor result = contiguous_output(target);
  const int64_t n = target.shape().back();
  const Tensor x = rows_of(p.x), dy = rows_of(p.dy);
  const Tensor y = p.backward() ? rows_of(p.y) : result, dx = p.backward() ? result : Tensor();
  const SoftmaxRows rows{.x = {x, n},
                         .y = {y, n},
                         .dy = {dy, n},
                         .dx = {dx, n},
                         .rows = target.numel() / n,
                         .n = n,
                         .log = p.log,
                         .vectors = rows_fit_vectors(8, {x, y, dy, dx})};
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  // f64: for checking gradients.
  if (p.dtype() == DType::f64 || !run_in_registers(rows, stream)) {
    with_arithmetic_zero(p.dtype(), [&](auto zero) {
      WEFT_LAUNCH(softmax_long_kernel<decltype(zero)>, blocks_for(rows.rows, 1), kLongRowThreads, 0,
                  stream, rows);
    });
  }
  finish_output(result, target);
}

}  // namespace weft::kernels
