// A warp per row with the row in its registers, read once and written once: rows of up to 3072
// elements (1024 where they do not fit vectors). Memory-bound; with 4 warps a block and 32 to 96
// registers of data a thread, an SM has enough loads in flight.
#include "core/stream.h"
#include "core/view.h"
#include "kernels/copy/copy.h"
#include "kernels/device/rows.cuh"
#include "kernels/softmax/softmax.h"

namespace weft::kernels {
namespace {

struct SoftmaxRows {
  RowElements x, y, dx;
  int64_t rows, n;
  bool log;
};

template <class Acc, int kVector, int kSteps>
__global__ void __launch_bounds__(kWarp* kRowWarps) softmax_kernel(SoftmaxRows p) {
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kRowWarps;
  WarpRow<Acc, kVector, kSteps> x;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
       row < p.rows; row += warps) {
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
  }
}

template <class Acc, int kVector, int kSteps>
__global__ void __launch_bounds__(kWarp* kRowWarps) softmax_backward_kernel(SoftmaxRows p) {
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kRowWarps;
  WarpRow<Acc, kVector, kSteps> dy, y;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
       row < p.rows; row += warps) {
    dy.read(p.x, row, p.n);
    y.read(p.y, row, p.n);
    Acc total = 0;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int lane = static_cast<int>(threadIdx.x) % kWarp;
      if (static_cast<int64_t>(s * kWarp + lane) * kVector >= p.n) continue;
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        total += p.log ? dy.values[s][k] : dy.values[s][k] * y.values[s][k];
      }
    }
    total = warp_sum(total);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const Acc g = dy.values[s][k], out = y.values[s][k];
        dy.values[s][k] = p.log ? g - std::exp(out) * total : out * (g - total);
      }
    }
    dy.write(p.dx, row, p.n);
  }
}

/// Rows of any length: a block per row that reads it as often as it needs.
constexpr int kThreads = 256;

template <class Acc>
__global__ void __launch_bounds__(kThreads) softmax_long_kernel(SoftmaxRows p) {
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const auto at = [&](const RowElements& t, int64_t i) {
      return load_one<Acc>(t.elements, row * t.stride + i);
    };
    if (p.dx) {
      Acc total = 0;
      for (int64_t i = threadIdx.x; i < p.n; i += kThreads) {
        total += p.log ? at(p.x, i) : at(p.x, i) * at(p.y, i);
      }
      total = block_sum<kThreads>(total);
      for (int64_t i = threadIdx.x; i < p.n; i += kThreads) {
        const Acc g = at(p.x, i), out = at(p.y, i);
        store_one(p.dx.elements, row * p.dx.stride + i,
                  p.log ? g - std::exp(out) * total : out * (g - total));
      }
      continue;
    }
    Acc max = -INFINITY, total = 0;
    for (int64_t i = threadIdx.x; i < p.n; i += kThreads) {
      const Acc v = at(p.x, i);
      max = v > max ? v : max;
    }
    max = block_join<kThreads>(max, [](Acc a, Acc b) { return a > b ? a : b; });
    for (int64_t i = threadIdx.x; i < p.n; i += kThreads) total += std::exp(at(p.x, i) - max);
    total = block_sum<kThreads>(total);
    const Acc log_total = std::log(total), scale = 1 / total;
    for (int64_t i = threadIdx.x; i < p.n; i += kThreads) {
      const Acc shifted = at(p.x, i) - max;
      store_one(p.y.elements, row * p.y.stride + i,
                p.log ? shifted - log_total : std::exp(shifted) * scale);
    }
  }
}

/// Rows of f32 arithmetic that fit registers; false for others.
bool run_in_registers(const SoftmaxRows& p, bool vectors, runtime::StreamHandle stream) {
  if (p.dx && p.n > kMostForTwoRows * kWarp) return false;
  return with_row_tile(p.n, vectors, [&](auto vector, auto steps) {
    constexpr int kVector = decltype(vector)::value, kSteps = decltype(steps)::value;
    const unsigned grid = blocks_for(p.rows, kRowWarps);
    if (p.dx) {
      // Two rows in registers.
      if constexpr (kVector * kSteps <= kMostForTwoRows) {
        WEFT_LAUNCH((softmax_backward_kernel<float, kVector, kSteps>), grid, kWarp * kRowWarps, 0,
                    stream, p);
      }
    } else {
      WEFT_LAUNCH((softmax_kernel<float, kVector, kSteps>), grid, kWarp * kRowWarps, 0, stream, p);
    }
  });
}

template <class Acc>
void run_long(const SoftmaxRows& p, runtime::StreamHandle stream) {
  WEFT_LAUNCH(softmax_long_kernel<Acc>, blocks_for(p.rows, 1), kThreads, 0, stream, p);
}

}  // namespace

void softmax_cuda_rows(const SoftmaxProblem& p) {
  if (p.x.numel() == 0) return;
  const int axis = wrap_dim(p.axis, p.x.dim(), "softmax");
  // Rows along the last dimension, side by side: other layouts pass through a copy.
  const auto with_rows_last = [&](const Tensor& t) {
    return view::transpose(t, axis, t.dim() - 1);
  };
  const auto rows_of = [&](const Tensor& t) { return contiguous(with_rows_last(t)); };
  const Tensor& output = p.backward() ? p.dx : p.y;
  const Tensor target = with_rows_last(output);
  const Tensor result =
      target.is_contiguous() ? target : Tensor::empty(target.shape(), p.dtype(), p.device());
  const Tensor x = rows_of(p.x), y = p.backward() ? rows_of(p.y) : result;
  const int64_t n = x.shape().back();
  SoftmaxRows rows{RowElements(x, n),
                   RowElements(y, n),
                   p.backward() ? RowElements(result, n) : RowElements(),
                   x.numel() / n,
                   n,
                   p.log};
  const bool vectors = rows_fit_vectors(n, {x, y, result});
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  if (p.dtype() == DType::f64) {
    run_long<double>(rows, stream);  // for checking gradients
  } else if (!run_in_registers(rows, vectors, stream)) {
    run_long<float>(rows, stream);
  }
  if (!target.is_contiguous()) copy({.x = result, .y = target});
}

}  // namespace weft::kernels
