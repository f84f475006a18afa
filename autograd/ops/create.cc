// Creation and conversion.
#include "autograd/deferral.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "autograd/raw.h"
#include "core/runtime.h"
#include "core/transfer.h"
#include "core/view.h"
#include "kernels/fill/fill.h"
#include "kernels/index/index.h"
#include "kernels/random/random.h"

namespace weft::ops {
Tensor full(const Shape& shape, double value, DType dtype, Device device) {
  Tensor y = Tensor::empty(shape, dtype, device);
  kernels::fill({.y = y, .value = value});
  return y;
}

Tensor full_like(const Tensor& x, double value) {
  return full(x.shape(), value, x.dtype(), x.device());
}
Tensor zeros_like(const Tensor& x) { return full_like(x, 0); }
Tensor ones(const Shape& shape, DType dtype, Device device) {
  return full(shape, 1, dtype, device);
}

namespace {

/// value(0), value(1), ..., computed in T and converted to the dtype a block at a time.
template <class T, class F>
Tensor sequence(int64_t count, DType dtype, F&& value) {
  const Tensor y = Tensor::empty({count}, dtype);
  const bool converts = dtype != dtype_of<T>();
  const int64_t size = converts ? std::min<int64_t>(count, 1 << 16) : count;
  const Tensor block = converts ? Tensor::empty({size}, dtype_of<T>()) : y;
  for (int64_t first = 0; first < count; first += size) {
    const int64_t n = std::min(size, count - first);
    T* const values = block.data<T>();
    for (int64_t i = 0; i < n; ++i) values[i] = value(first + i);
    if (converts) raw::copy(view::narrow(block, 0, 0, n), view::narrow(y, 0, first, n));
  }
  return y;
}

}  // namespace

Tensor arange(int64_t begin, int64_t end, DType dtype) {
  WEFT_CHECK(begin <= end, "arange: begin {} lies behind end {}", begin, end);
  return sequence<int64_t>(end - begin, dtype, [=](int64_t i) { return begin + i; });
}

Tensor linspace(double start, double end, int64_t steps, DType dtype, Device device) {
  WEFT_CHECK(steps >= 0, "linspace: the number of steps must not be negative, got {}", steps);
  const double step = (end - start) / static_cast<double>(std::max<int64_t>(steps - 1, 1));
  // From the nearer end, so that both are exact and the middle is symmetric.
  const auto value = [=](int64_t i) {
    return i < (steps + 1) / 2 ? start + static_cast<double>(i) * step
                               : end - static_cast<double>(steps - 1 - i) * step;
  };
  return to(sequence<double>(steps, dtype, value), device);
}

Tensor eye(int64_t n, DType dtype) {
  WEFT_CHECK(n >= 0, "eye: the size must not be negative, got {}", n);
  Tensor y = Tensor::zeros({n, n}, dtype, {});
  const Tensor diagonal = Tensor::view_of(y.storage(), {n}, {n + 1}, 0, dtype);
  kernels::fill({.y = diagonal, .value = 1});
  return y;
}

Tensor one_hot(const Tensor& indices, int64_t classes, DType dtype) {
  WEFT_CHECK(!is_floating(indices.dtype()) && classes > 0,
             "one_hot: expected integer indices and a positive number of classes, got {} and {}",
             indices, classes);
  Shape shape = indices.shape();
  shape.push_back(classes);
  Tensor y = Tensor::zeros(shape, dtype, indices.device());
  const Tensor index = view::unsqueeze(raw::contiguous(indices, DType::i64), indices.dim());
  kernels::index({.kind = kernels::IndexKind::kScatter,
                  .x = full(index.shape(), 1, dtype, indices.device()),
                  .index = index,
                  .y = y,
                  .axis = indices.dim()});
  return y;
}

namespace {

Tensor draw(const Shape& shape, DType dtype, kernels::Distribution distribution) {
  kernels::RandomProblem problem{.y = Tensor::empty(shape, dtype), .distribution = distribution};
  Generator& g = generator();
  problem.seed = g.seed;
  problem.stream = g.stream;
  problem.offset = g.take(problem.y.numel());
  kernels::random(problem);
  return problem.y;
}

}  // namespace

Tensor rand(const Shape& shape, DType dtype) {
  return draw(shape, dtype, kernels::Distribution::kUniform);
}
Tensor randn(const Shape& shape, DType dtype) {
  return draw(shape, dtype, kernels::Distribution::kNormal);
}

Tensor cast(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor y;
  if (is_deferred(x.shape())) [[unlikely]] {
    y = defer({.op = kernels::MoveOp::kCast, .dtype = dtype}, {x}, x.shape());
  } else {
    y = Tensor::empty(x.shape(), dtype, x.device());
    raw::copy(x, y);
  }
  if (!is_floating(dtype)) return y;
  return record("cast", {x}, y, {},
                [old = x.dtype()](const Backward& b) -> Tensors { return {cast(b.dy(), old)}; });
}

Tensor to(const Tensor& x, Device device) {
  if (x.device() == device) return x;
  require_device(device);
  // Between CPU addresses elements are copied; to and from CUDA the bytes travel as they lie.
  Tensor y;
  if (x.device().type == device.type && device.type == DeviceType::cpu) {
    y = Tensor::empty(x.shape(), x.dtype(), device);
    raw::copy(x, y);
  } else {
    y = to_device(raw::contiguous(x, x.dtype()), device);
  }
  return record("to", {x}, y, {},
                [old = x.device()](const Backward& b) -> Tensors { return {to(b.dy(), old)}; });
}

Tensor contiguous(const Tensor& x) { return x.is_contiguous() ? x : clone(x); }

Tensor clone(const Tensor& x) {
  Tensor y = raw::empty_like(x);
  raw::copy(x, y);
  return record("clone", {x}, y, {}, [](const Backward& b) -> Tensors { return {b.dy()}; });
}

}  // namespace weft::ops
