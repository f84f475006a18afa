// A warp per row, which looks at its logits up to four times: maximum, sum of exponentials,
// targets, gradient. Up to 1024 f32 ones stay in its registers, so that the loss and its gradient
// take one read and one write of memory; of longer rows the later reads hit the caches up to some
// ten thousand classes. Lane l has columns l, l + 32, ... either way, and the bits are the same,
// whether the gradient comes with the loss or by a kernel of its own. Every difference is
// taken from the maximum, so that a large common offset of the logits costs no accuracy. A hard
// label that is not a class gives a loss, or a gradient, of NaN: a kernel cannot throw.
#include "core/stream.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/device/rows.cuh"

namespace weft::kernels {
namespace {

/// A matrix of any strides.
struct Matrix {
  Numbers elements;
  int64_t row = 0, column = 0;

  Matrix() = default;
  explicit Matrix(const Tensor& t) : elements(t) {
    if (!t.defined()) return;
    row = t.strides()[0];
    column = t.dim() > 1 ? t.strides()[1] : 0;
  }
};

struct CrossEntropyRows {
  Matrix logits, labels, loss, lse, dloss, dlogits;
  bool hard, has_lse;
  int64_t rows, n, ignore_index;
  double smoothing;
};

template <class Acc>
struct Row {
  const CrossEntropyRows& p;
  int64_t row;

  __device__ Acc at(const Matrix& m, int64_t column) const {
    return load_one<Acc>(m.elements, row * m.row + column * m.column);
  }
  __device__ void put(const Matrix& m, int64_t column, Acc x) const {
    store_one(m.elements, row * m.row + column * m.column, x);
  }
  __device__ int64_t label() const {
    return static_cast<const int64_t*>(p.labels.elements.data)[row * p.labels.row];
  }
};

/// The logits of a warp's row: kSteps of a lane in registers, or, with none, read as they are asked
/// for.
template <class Acc, int kSteps>
struct Logits {
  const Row<Acc>& row;
  Acc values[kSteps > 0 ? kSteps : 1];

  __device__ explicit Logits(const Row<Acc>& row) : row(row) {
    const int64_t lane = threadIdx.x % kWarp;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int64_t c = s * kWarp + lane;
      if (c < row.p.n) values[s] = row.at(row.p.logits, c);
    }
  }
  /// Calls f(column, logit) for this lane's columns.
  template <class F>
  __device__ void for_each(F f) const {
    const int64_t lane = threadIdx.x % kWarp;
    if constexpr (kSteps > 0) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const int64_t c = s * kWarp + lane;
        if (c < row.p.n) f(c, values[s]);
      }
    } else {
      for (int64_t c = lane; c < row.p.n; c += kWarp) f(c, row.at(row.p.logits, c));
    }
  }
  /// The sum of f(column, logit) over the row, in all lanes.
  template <class F>
  __device__ Acc sum(F f) const {
    Acc total = 0;
    for_each([&](int64_t c, Acc x) { total += f(c, x); });
    return warp_sum(total);
  }
};

/// dlogits of a row whose label is one of the classes, or to be ignored, or makes everything NaN.
template <class Acc, int kSteps>
__device__ void write_gradient(const Row<Acc>& row, const Logits<Acc, kSteps>& logits, Acc lse) {
  const CrossEntropyRows& p = row.p;
  const Acc share = static_cast<Acc>(p.smoothing / static_cast<double>(p.n));
  const Acc keep = static_cast<Acc>(1 - p.smoothing);
  Acc dloss = row.at(p.dloss, 0);
  const int64_t label = p.hard ? row.label() : 0;
  const bool ignored = p.hard && label == p.ignore_index;
  if (p.hard && !ignored && (label < 0 || label >= p.n)) dloss = static_cast<Acc>(NAN);
  const auto target = [&](int64_t c) {
    if (p.hard) return c == label ? keep + share : share;
    return keep * row.at(p.labels, c) + share;
  };
  // Soft labels need not sum to 1.
  const Acc total = p.hard ? Acc{1} : logits.sum([&](int64_t c, Acc) { return target(c); });
  logits.for_each([&](int64_t c, Acc x) {
    const Acc softmax = std::exp(x - lse);
    row.put(p.dlogits, c, ignored ? Acc{0} : (softmax * total - target(c)) * dloss);
  });
}

template <class Acc, int kSteps, bool kGradient>
__global__ void __launch_bounds__(kRowThreads) cross_entropy_kernel(CrossEntropyRows p) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Acc smoothing = static_cast<Acc>(p.smoothing), keep = static_cast<Acc>(1 - p.smoothing);
  for_each_row(p.rows, [&](int64_t r) {
    const Row<Acc> row{p, r};
    const Logits<Acc, kSteps> logits(row);
    Acc max = -INFINITY;
    logits.for_each([&](int64_t, Acc x) { max = x > max ? x : max; });
    max = warp_max(max);
    const Acc log_sum = std::log(logits.sum([&](int64_t, Acc x) { return std::exp(x - max); }));
    Acc loss = 0;
    const int64_t label = p.hard ? row.label() : 0;
    const bool ignored = p.hard && label == p.ignore_index;
    if (!p.hard) {
      loss = keep * logits.sum([&](int64_t c, Acc x) {
        return row.at(p.labels, c) * (log_sum - (x - max));
      });
    } else if (!ignored) {
      loss = label < 0 || label >= p.n ? static_cast<Acc>(NAN)
                                       : keep * (log_sum - (row.at(p.logits, label) - max));
    }
    if (smoothing != 0) {
      // The mean over all classes of -log softmax; every lane takes part in the sum.
      const Acc mean =
          logits.sum([&](int64_t, Acc x) { return log_sum - (x - max); }) / static_cast<Acc>(p.n);
      if (!ignored) loss += smoothing * mean;
    }
    if (lane == 0) {
      row.put(p.loss, 0, loss);
      if (p.has_lse) row.put(p.lse, 0, max + log_sum);
    }
    if constexpr (kGradient) {
      __syncwarp();  // dlogits may be logits' memory, where lanes read the label's
      write_gradient(row, logits, max + log_sum);
    }
  });
}

template <class Acc>
__global__ void __launch_bounds__(kRowThreads) cross_entropy_backward_kernel(CrossEntropyRows p) {
  for_each_row(p.rows, [&](int64_t r) {
    const Row<Acc> row{p, r};
    write_gradient(row, Logits<Acc, 0>(row), row.at(p.lse, 0));
  });
}

}  // namespace

void cross_entropy_cuda_rows(const CrossEntropyProblem& p) {
  const CrossEntropyRows rows{
      Matrix(p.logits),    Matrix(p.labels),    Matrix(p.loss), Matrix(p.lse),
      Matrix(p.dloss),     Matrix(p.dlogits),   p.hard(),       p.lse.defined(),
      p.logits.shape()[0], p.logits.shape()[1], p.ignore_index, p.label_smoothing};
  if (rows.rows == 0) return;
  const unsigned grid = blocks_for(rows.rows, kRowWarps);
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  const auto with_loss = [&]<class Acc>(Acc, auto steps) {
    const auto kernel = p.backward() ? cross_entropy_kernel<Acc, steps(), true>
                                     : cross_entropy_kernel<Acc, steps(), false>;
    WEFT_LAUNCH(kernel, grid, kRowThreads, 0, stream, rows);
  };
  const auto gradient_alone = [&](auto zero) {
    WEFT_LAUNCH(cross_entropy_backward_kernel<decltype(zero)>, grid, kRowThreads, 0, stream, rows);
  };
  const bool is_f64 = p.dtype() == DType::f64;
  if (!p.forward()) return is_f64 ? gradient_alone(0.0) : gradient_alone(0.0f);
  if (is_f64) return with_loss(0.0, Int<0>());
  if (rows.n <= 8 * kWarp) return with_loss(0.0f, Int<8>());
  if (rows.n <= 32 * kWarp) return with_loss(0.0f, Int<32>());
  with_loss(0.0f, Int<0>());
}

}  // namespace weft::kernels
