// A warp per row, which reads its logits up to three times: maximum, sum of exponentials, targets.
// The second and third reads hit the caches up to some ten thousand classes. Every difference is
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
  /// The sum of f(column) over the row, in all lanes.
  template <class F>
  __device__ Acc sum(F f) const {
    Acc total = 0;
    for (int64_t c = threadIdx.x % kWarp; c < p.n; c += kWarp) total += f(c);
    return warp_sum(total);
  }
};

template <class Acc>
__global__ void __launch_bounds__(kWarp* kRowWarps) cross_entropy_kernel(CrossEntropyRows p) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Acc smoothing = static_cast<Acc>(p.smoothing), keep = static_cast<Acc>(1 - p.smoothing);
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kRowWarps;
  for (int64_t r = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp; r < p.rows;
       r += warps) {
    const Row<Acc> row{p, r};
    Acc max = -INFINITY;
    for (int64_t c = lane; c < p.n; c += kWarp) {
      const Acc v = row.at(p.logits, c);
      max = v > max ? v : max;
    }
    max = warp_max(max);
    const auto shifted = [&](int64_t c) { return row.at(p.logits, c) - max; };
    const Acc log_sum = std::log(row.sum([&](int64_t c) { return std::exp(shifted(c)); }));
    Acc loss = 0;
    const int64_t label = p.hard ? row.label() : 0;
    const bool ignored = p.hard && label == p.ignore_index;
    if (!p.hard) {
      loss =
          keep * row.sum([&](int64_t c) { return row.at(p.labels, c) * (log_sum - shifted(c)); });
    } else if (!ignored) {
      loss = label < 0 || label >= p.n ? static_cast<Acc>(NAN) : keep * (log_sum - shifted(label));
    }
    if (smoothing != 0) {
      // The mean over all classes of -log softmax; every lane takes part in the sum.
      const Acc mean =
          row.sum([&](int64_t c) { return log_sum - shifted(c); }) / static_cast<Acc>(p.n);
      if (!ignored) loss += smoothing * mean;
    }
    if (lane == 0) {
      row.put(p.loss, 0, loss);
      if (p.has_lse) row.put(p.lse, 0, max + log_sum);
    }
  }
}

template <class Acc>
__global__ void __launch_bounds__(kWarp* kRowWarps)
    cross_entropy_backward_kernel(CrossEntropyRows p) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Acc share = static_cast<Acc>(p.smoothing / static_cast<double>(p.n));
  const Acc keep = static_cast<Acc>(1 - p.smoothing);
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kRowWarps;
  for (int64_t r = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp; r < p.rows;
       r += warps) {
    const Row<Acc> row{p, r};
    const Acc lse = row.at(p.lse, 0);
    Acc dloss = row.at(p.dloss, 0);
    const int64_t label = p.hard ? row.label() : 0;
    const bool ignored = p.hard && label == p.ignore_index;
    if (p.hard && !ignored && (label < 0 || label >= p.n)) dloss = static_cast<Acc>(NAN);
    const auto target = [&](int64_t c) {
      if (p.hard) return c == label ? keep + share : share;
      return keep * row.at(p.labels, c) + share;
    };
    // Soft labels need not sum to 1.
    const Acc total = p.hard ? Acc{1} : row.sum(target);
    for (int64_t c = lane; c < p.n; c += kWarp) {
      const Acc softmax = std::exp(row.at(p.logits, c) - lse);
      row.put(p.dlogits, c, ignored ? Acc{0} : (softmax * total - target(c)) * dloss);
    }
  }
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
  const auto run = [&](auto zero) {
    using Acc = decltype(zero);
    if (p.backward()) {
      WEFT_LAUNCH(cross_entropy_backward_kernel<Acc>, grid, kWarp * kRowWarps, 0, stream, rows);
    } else {
      WEFT_LAUNCH(cross_entropy_kernel<Acc>, grid, kWarp * kRowWarps, 0, stream, rows);
    }
  };
  p.dtype() == DType::f64 ? run(0.0) : run(0.0f);
}

}  // namespace weft::kernels
