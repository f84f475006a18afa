// Lookup by index. The indices are checked by the kernel before anything is written.
#include "kernels/index/index.h"

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/raw.h"

namespace weft::ops {
namespace {

using kernels::IndexKind;

void check_index(std::string_view op, const Tensor& index) {
  WEFT_CHECK(index.defined() && (index.dtype() == DType::i64 || index.dtype() == DType::i32),
             "{}: indices must be i64 or i32, got {}", op, index);
}

/// source added into zeros of x's shape: the gradient of reading x by index.
Tensor spread(const Tensor& dy, const Tensor& index, const Shape& shape, int axis, IndexKind kind) {
  Tensor dx = Tensor::zeros(shape, dy.dtype(), dy.device());
  kernels::index({.kind = kind, .x = dy, .index = index, .y = dx, .axis = axis});
  return record("spread", {dy}, dx, {index}, [axis, kind](const Backward& b) -> Tensors {
    const Tensor index = b.saved(0);
    return {kind == IndexKind::kAdd ? index_select(b.dy(), axis, index)
                                    : gather(b.dy(), axis, index)};
  });
}

void check_gather(std::string_view op, const Tensor& x, int axis, const Tensor& index,
                  const Tensor& values) {
  check_index(op, index);
  raw::check_operands(op, {x, index, values});
  WEFT_CHECK(index.dim() == x.dim() && index.shape() == values.shape(),
             "{}: index {} must have the dimensions of {} and the shape of {}", op, index, x,
             values);
  for (int d = 0; d < x.dim(); ++d) {
    WEFT_CHECK(d == axis || index.shape()[d] <= x.shape()[d],
               "{}: index {} is larger than {} in dimension {}", op, index, x, d);
  }
}

}  // namespace

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& indices) {
  check_index("index_select", indices);
  raw::check_operands("index_select", {x, indices});
  WEFT_CHECK(indices.dim() == 1, "index_select: expected indices [n], got {}", indices);
  const int axis = wrap_dim(dim, x.dim(), "index_select");
  Shape shape = x.shape();
  shape[axis] = indices.numel();
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  kernels::index({.kind = IndexKind::kSelect, .x = x, .index = indices, .y = y, .axis = axis});
  return record("index_select", {x}, y, {indices},
                [axis, shape = x.shape()](const Backward& b) -> Tensors {
                  return {spread(b.dy(), b.saved(0), shape, axis, IndexKind::kAdd)};
                });
}

Tensor embedding(const Tensor& weight, const Tensor& indices) {
  WEFT_CHECK(weight.dim() == 2, "embedding: expected weight [V, D], got {}", weight);
  check_index("embedding", indices);
  Shape shape = indices.shape();
  shape.push_back(weight.size(1));
  return reshape(index_select(weight, 0, reshape(indices, {-1})), shape);
}

Tensor gather(const Tensor& x, int64_t dim, const Tensor& index) {
  const int axis = wrap_dim(dim, x.dim(), "gather");
  Tensor y = Tensor::empty(index.shape(), x.dtype(), x.device());
  check_gather("gather", x, axis, index, y);
  kernels::index({.kind = IndexKind::kGather, .x = x, .index = index, .y = y, .axis = axis});
  return record("gather", {x}, y, {index}, [axis, shape = x.shape()](const Backward& b) -> Tensors {
    return {spread(b.dy(), b.saved(0), shape, axis, IndexKind::kScatterAdd)};
  });
}

Tensor scatter_add(const Tensor& target, int64_t dim, const Tensor& index, const Tensor& added) {
  const DType dtype = promote(target.dtype(), added.dtype());
  const bool promotes = autocast_dtype() != DType::f32;
  const Tensor x = promotes ? cast(target, dtype) : target;
  const Tensor source = promotes ? cast(added, dtype) : added;
  const int axis = wrap_dim(dim, x.dim(), "scatter_add");
  check_gather("scatter_add", x, axis, index, source);
  WEFT_CHECK(x.dtype() == source.dtype(), "scatter_add: {} and {} differ in dtype", x, source);
  Tensor y = raw::empty_like(x);
  raw::copy(x, y);
  kernels::index(
      {.kind = IndexKind::kScatterAdd, .x = source, .index = index, .y = y, .axis = axis});
  return record("scatter_add", {x, source}, y, {index}, [axis](const Backward& b) -> Tensors {
    return {b.dy(), b.needs(1) ? gather(b.dy(), axis, b.saved(0)) : Tensor()};
  });
}

}  // namespace weft::ops
