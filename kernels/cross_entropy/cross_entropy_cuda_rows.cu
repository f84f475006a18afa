// Up to 1024 f32 logits stay in a warp's registers, so that the loss and its gradient take one read
// and one write of memory. A longer row is a block's, in vectors, which looks at it twice: once for
// the maximum and the sum of exponentials together, once for the gradient; the second read hits the
// caches up to some ten thousand classes. Smoothing and soft labels read it once more. Both are
// bound by memory.
//
// The bits are the same whether the gradient comes with the loss or by a launch of its own. Every
// difference is taken from the maximum, so that a large common offset of the logits costs no
// accuracy. A hard label that is not a class gives a loss, or a gradient, of NaN: a kernel cannot
// throw.
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
  bool hard;
  bool vectors;  // whether matrices may be read by 8 columns, all at the same ones
  int64_t rows, n, ignore_index;
  double smoothing;
};

template <class Acc>
struct Row {
  const CrossEntropyRows& p;
  int64_t row, label;  // label: of hard ones
  bool is_ignored, is_class;
  Acc share, keep;

  __device__ Row(const CrossEntropyRows& p, int64_t row) : p(p), row(row) {
    label = p.hard ? static_cast<const int64_t*>(p.labels.elements.data)[row * p.labels.row] : 0;
    is_ignored = p.hard && label == p.ignore_index;
    is_class = label >= 0 && label < p.n;
    share = static_cast<Acc>(p.smoothing / static_cast<double>(p.n));
    keep = static_cast<Acc>(1 - p.smoothing);
  }
  __device__ Acc at(const Matrix& m, int64_t column) const {
    return load_one<Acc>(m.elements, row * m.row + column * m.column);
  }
  /// x = columns c, c + 1, ...
  template <int k>
  __device__ void read(const Matrix& m, int64_t c, Acc (&x)[k]) const {
    load(m.elements, row * m.row + c * m.column, x);
  }
  template <int k>
  __device__ void put(const Matrix& m, int64_t c, const Acc (&x)[k]) const {
    store(m.elements, row * m.row + c * m.column, x);
  }
  /// t = the smoothed targets of the columns c, c + 1, ...
  template <int k>
  __device__ void targets(int64_t c, Acc (&t)[k]) const {
    if (!p.hard) read(p.labels, c, t);
#pragma unroll
    for (int i = 0; i < k; ++i) {
      if (p.hard) t[i] = c + i == label ? Acc{1} : Acc{0};
      t[i] = keep * t[i] + share;
    }
  }
};

/// The logits of a warp's row in its registers, kSteps of a lane: lane l has the columns l, l + 32,
/// ...
template <class Acc, int kSteps>
struct WarpLogits {
  const Row<Acc>& row;
  Acc values[kSteps];

  __device__ explicit WarpLogits(const Row<Acc>& row) : row(row) {
    const int64_t lane = threadIdx.x % kWarp;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int64_t c = s * kWarp + lane;
      if (c < row.p.n) values[s] = row.at(row.p.logits, c);
    }
  }
  /// Calls f(column, logits), where the logits are an array of one or several.
  template <class F>
  __device__ void for_each(F f) const {
    const int64_t lane = threadIdx.x % kWarp;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int64_t c = s * kWarp + lane;
      const Acc x[1] = {values[s]};
      if (c < row.p.n) f(c, x);
    }
  }
  static __device__ Acc sum(Acc x) { return warp_sum(x); }
  __device__ Exponentials<Acc> exponentials() const {
    Acc max = -INFINITY, total = 0;
    for_each([&](int64_t, const auto& x) { max = x[0] > max ? x[0] : max; });
    max = warp_max(max);
    for_each([&](int64_t, const auto& x) { total += std::exp(x[0] - max); });
    return {max, sum(total)};
  }
  static __device__ void wait() { __syncwarp(); }
};

/// The logits of a block's row, which are read as they are asked for.
template <class Acc>
struct BlockLogits {
  const Row<Acc>& row;

  template <class F>
  __device__ void for_each(F f) const {
    const CrossEntropyRows& p = row.p;
    for_each_long_step(row.row * p.logits.row, p.n, p.vectors, [&](auto count, int64_t c) {
      Acc x[count()];
      row.read(p.logits, c, x);
      f(c, x);
    });
  }
  static __device__ Acc sum(Acc x) { return block_sum<kLongRowThreads>(x); }
  __device__ Exponentials<Acc> exponentials() const {
    return long_row_exponentials<Acc>(
        [&](auto f) { for_each([&](int64_t, const auto& x) { f(x); }); });
  }
  static __device__ void wait() { __syncthreads(); }
};

/// The sum of f(column, logits) over a row.
template <class Acc, class Logits, class F>
__device__ Acc sum_of(const Logits& logits, F f) {
  Acc total = 0;
  logits.for_each([&](int64_t c, const auto& x) { total += f(c, x); });
  return logits.sum(total);
}

/// Writes the loss, and returns the logarithm of the sum of the exponentials.
template <class Acc, class Logits>
__device__ Acc write_loss(const Row<Acc>& row, const Logits& logits, bool is_writer) {
  const CrossEntropyRows& p = row.p;
  const Exponentials<Acc> all = logits.exponentials();
  const Acc log_sum = std::log(all.sum);
  const auto surprise = [&](Acc logit) { return log_sum - (logit - all.max); };
  Acc loss = 0;
  if (!p.hard) {
    loss = row.keep * sum_of<Acc>(logits, [&](int64_t c, const auto& x) {
             std::remove_cvref_t<decltype(x)> labels;
             row.read(p.labels, c, labels);
             Acc total = 0;
             for (size_t i = 0; i < std::size(x); ++i) total += labels[i] * surprise(x[i]);
             return total;
           });
  } else if (!row.is_ignored) {
    loss = row.is_class ? row.keep * surprise(row.at(p.logits, row.label)) : static_cast<Acc>(NAN);
  }
  if (p.smoothing != 0) {
    // The mean of all classes; every thread takes part in the sum.
    const Acc total = sum_of<Acc>(logits, [&](int64_t, const auto& x) {
      Acc sum = 0;
      for (const Acc logit : x) sum += surprise(logit);
      return sum;
    });
    if (!row.is_ignored) loss += static_cast<Acc>(p.smoothing) * (total / static_cast<Acc>(p.n));
  }
  if (is_writer) {
    row.put(p.loss, 0, {loss});
    if (p.lse.elements) row.put(p.lse, 0, {all.max + log_sum});
  }
  logits.wait();  // dlogits may be logits' memory, where threads read the label's
  return all.max + log_sum;
}

template <class Acc, class Logits>
__device__ void write_gradient(const Row<Acc>& row, const Logits& logits, Acc lse) {
  const CrossEntropyRows& p = row.p;
  Acc dloss = row.at(p.dloss, 0);
  if (p.hard && !row.is_ignored && !row.is_class) dloss = static_cast<Acc>(NAN);
  Acc whole = 1;
  if (!p.hard) {  // their sum need not be 1
    whole = sum_of<Acc>(logits, [&](int64_t c, const auto& x) {
      std::remove_cvref_t<decltype(x)> t;
      row.targets(c, t);
      Acc sum = 0;
      for (const Acc target : t) sum += target;
      return sum;
    });
  }
  logits.for_each([&](int64_t c, const auto& x) {
    std::remove_cvref_t<decltype(x)> d;
    row.targets(c, d);
#pragma unroll
    for (size_t i = 0; i < std::size(x); ++i) {
      const Acc softmax = std::exp(x[i] - lse);
      d[i] = row.is_ignored ? Acc{0} : (softmax * whole - d[i]) * dloss;
    }
    row.put(p.dlogits, c, d);
  });
}

template <class Acc, class Logits>
__device__ void cross_entropy_row(const Row<Acc>& row, const Logits& logits, bool is_writer) {
  const CrossEntropyRows& p = row.p;
  const Acc lse = p.loss.elements ? write_loss(row, logits, is_writer) : row.at(p.lse, 0);
  if (p.dlogits.elements) write_gradient(row, logits, lse);
}

template <int kSteps>
__global__ void __launch_bounds__(kRowThreads) cross_entropy_kernel(CrossEntropyRows p) {
  for_each_row(p.rows, [&](int64_t r) {
    const Row<float> row(p, r);
    cross_entropy_row(row, WarpLogits<float, kSteps>(row), threadIdx.x % kWarp == 0);
  });
}

template <class Acc>
__global__ void __launch_bounds__(kLongRowThreads) cross_entropy_long_kernel(CrossEntropyRows p) {
  for (int64_t r = blockIdx.x; r < p.rows; r += gridDim.x) {
    const Row<Acc> row(p, r);
    cross_entropy_row(row, BlockLogits<Acc>{row}, threadIdx.x == 0);
  }
}

/// Whether the matrices' rows lie alike, so that their vectors begin at the same columns.
bool fit_vectors(const Tensor& logits, std::initializer_list<Tensor> others) {
  const auto is_like = [&](const Tensor& t) {
    return !t.defined() || (is_aligned(t, 8) && t.strides()[1] == 1 &&
                            (t.strides()[0] - logits.strides()[0]) % 8 == 0);
  };
  return is_like(logits) && std::ranges::all_of(others, is_like);
}

}  // namespace

void cross_entropy_cuda_rows(const CrossEntropyProblem& p) {
  const CrossEntropyRows rows{
      .logits = Matrix(p.logits),
      .labels = Matrix(p.labels),
      .loss = Matrix(p.loss),
      .lse = Matrix(p.lse),
      .dloss = Matrix(p.dloss),
      .dlogits = Matrix(p.dlogits),
      .hard = p.hard(),
      .vectors = fit_vectors(p.logits, {p.hard() ? Tensor() : p.labels, p.dlogits}),
      .rows = p.logits.shape()[0],
      .n = p.logits.shape()[1],
      .ignore_index = p.ignore_index,
      .smoothing = p.label_smoothing};
  if (rows.rows == 0) return;
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  const auto in_registers = [&](auto steps) {
    WEFT_LAUNCH(cross_entropy_kernel<steps()>, blocks_for(rows.rows, kRowWarps), kRowThreads, 0,
                stream, rows);
  };
  const auto by_blocks = [&](auto zero) {
    WEFT_LAUNCH(cross_entropy_long_kernel<decltype(zero)>, blocks_for(rows.rows, 1),
                kLongRowThreads, 0, stream, rows);
  };
  if (p.dtype() == DType::f64) return by_blocks(0.0);  // for checking gradients
  if (rows.n <= 8 * kWarp) return in_registers(Int<8>());
  if (rows.n <= 32 * kWarp) return in_registers(Int<32>());
  by_blocks(0.0f);
}

}  // namespace weft::kernels
