// The tensors are seen as [outer, axis, inner]. Reads take a thread for each element. Writes keep
// the order of i, as the CPU's: a thread for each (outer, inner) line runs through it, so that
// additions need no atomics and the last of equal indices wins. f16 and bf16 are added in an f32
// copy of y, rounded at the end. The indices are looked at on the host first, which waits for them.
#include "core/stream.h"
#include "core/transfer.h"
#include "kernels/copy/copy.h"
#include "kernels/device/elements.cuh"
#include "kernels/device/warp.cuh"
#include "kernels/elementwise/walk.h"
#include "kernels/index/index.h"

namespace weft::kernels {
namespace {

constexpr int kThreads = 256;

/// Element offsets of x, y and the index: strides per dimension of what is moved.
struct IndexLines {
  Elements x, y, index;
  bool wrap;
  int dims, axis;
  int64_t shape[kMaxDims];
  int64_t x_strides[kMaxDims], y_strides[kMaxDims], index_strides[kMaxDims];
  int64_t axis_size;  // of the tensor that the indices point into
  int64_t lines;      // elements over the length of the axis

  struct Place {
    int64_t x = 0, y = 0, index = 0;
  };
  /// The first element of a line.
  __device__ Place line(int64_t number) const {
    Place p;
    for (int d = dims - 1; d >= 0; --d) {
      if (d == axis) continue;
      const int64_t at = number % shape[d];
      number /= shape[d];
      p.x += at * x_strides[d];
      p.y += at * y_strides[d];
      p.index += at * index_strides[d];
    }
    return p;
  }
  __device__ int64_t target(const Place& p, int64_t i) const {
    const int64_t at = load_one<int64_t>(index, p.index + i * index_strides[axis]);
    return wrap && at < 0 ? at + axis_size : at;
  }
};

/// Neighbouring threads take neighbouring elements of the innermost dimension but the axis.
template <class Word>
__global__ void __launch_bounds__(kThreads) gather_kernel(IndexLines t) {
  const int64_t length = t.shape[t.axis], total = t.lines * length;
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; k < total;
       k += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t i = k / t.lines;
    const IndexLines::Place p = t.line(k % t.lines);
    static_cast<Word*>(t.y.data)[p.y + i * t.y_strides[t.axis]] =
        static_cast<const Word*>(t.x.data)[p.x + t.target(p, i) * t.x_strides[t.axis]];
  }
}

/// X: the type in which x is stored; y is of type T. x is added, or assigned.
template <class T, class X, bool kAdds>
__global__ void __launch_bounds__(kThreads) scatter_kernel(IndexLines t) {
  const int64_t length = t.shape[t.axis];
  for (int64_t line = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; line < t.lines;
       line += static_cast<int64_t>(gridDim.x) * kThreads) {
    const IndexLines::Place p = t.line(line);
    for (int64_t i = 0; i < length; ++i) {
      const X x = static_cast<const X*>(t.x.data)[p.x + i * t.x_strides[t.axis]];
      T& y = static_cast<T*>(t.y.data)[p.y + t.target(p, i) * t.y_strides[t.axis]];
      if constexpr (!kAdds) {
        y = x;
      } else if constexpr (std::is_integral_v<T>) {
        using Ring = std::make_unsigned_t<T>;
        y = static_cast<T>(static_cast<Ring>(y) + static_cast<Ring>(x));
      } else {
        y += elements::to_arithmetic<X, T>(x);
      }
    }
  }
}

template <class T, class X, bool kAdds>
void launch_scatter(const IndexLines& t, runtime::StreamHandle stream) {
  WEFT_LAUNCH((scatter_kernel<T, X, kAdds>), blocks_for(t.lines, kThreads), kThreads, 0, stream, t);
}

}  // namespace

void index_cuda_lines(const IndexProblem& p) {
  IndexProblem on_host = p;
  on_host.index = to_device(p.index, Device{});
  checked_indices(on_host);
  const bool widens = p.adds() && (p.dtype() == DType::f16 || p.dtype() == DType::bf16);
  const Tensor y = widens ? Tensor::empty(p.y.shape(), DType::f32, p.device()) : p.y;
  if (widens) copy({.x = p.y, .y = y});
  IndexLines t = {
      .x = Elements(p.x), .y = Elements(y), .index = Elements(p.index), .wrap = p.wrap_negative};
  t.axis = wrap_dim(p.axis, p.x.dim(), name(p.kind));
  const Shape& shape = p.moved();
  t.dims = shape.size();
  t.axis_size = p.indexed().shape()[t.axis];
  t.lines = 1;
  for (int d = 0; d < t.dims; ++d) {
    t.shape[d] = shape[d];
    t.x_strides[d] = p.x.strides()[d];
    t.y_strides[d] = y.strides()[d];
    t.index_strides[d] = !p.by_slice() ? p.index.strides()[d]
                         : d == t.axis ? p.index.strides()[0]
                                       : 0;
    if (d != t.axis) t.lines *= shape[d];
  }
  if (numel(shape) == 0) return;
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  const auto move = [&]<class Word>(Word) {
    if (p.reads()) {
      WEFT_LAUNCH(gather_kernel<Word>, blocks_for(numel(shape), kThreads), kThreads, 0, stream, t);
    } else {
      launch_scatter<Word, Word, false>(t, stream);
    }
  };
  if (!p.adds()) return with_word(p.x.itemsize(), move);
  with_addable(p.dtype(), [&]<class X>(X) {
    using T = std::conditional_t<std::is_arithmetic_v<X>, X, float>;
    launch_scatter<T, X, true>(t, stream);
  });
  if (widens) copy({.x = y, .y = p.y});
}

}  // namespace weft::kernels
