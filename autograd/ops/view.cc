// Views: new shapes and strides on the same storage. Each gradient is the opposite view, or a zero
// tensor into whose view the gradient is copied.
#include "core/view.h"

#include "autograd/ops.h"
#include "autograd/ops/recording.h"
#include "autograd/raw.h"

namespace weft::ops {
namespace {

/// The gradient of taking a part of a tensor: zeros of the whole's shape, and dy in the part.
Tensor embed(const Tensor& dy, const Shape& shape, int dim, int64_t begin, int64_t step) {
  Tensor dx = Tensor::zeros(shape, dy.dtype(), dy.device());
  const int64_t size = dy.shape()[dim];
  Tensor part = slice(dx, dim, begin, size == 0 ? begin : begin + (size - 1) * step + 1, step);
  copy_(part, dy);
  return dx;
}

/// record_view, whose gradient function is made only where it may be called.
template <class F>
Tensor show(std::string_view op, const Tensor& x, Tensor y, F backward) {
  return record_view(op, x, std::move(y),
                     is_observed(x) ? BackwardFunction(std::move(backward)) : BackwardFunction());
}

Tensor show_reshaped(const Tensor& x, Tensor y) {
  return show("view", x, std::move(y),
              [old = x.shape()](const Backward& b) -> Tensors { return {reshape(b.dy(), old)}; });
}

}  // namespace

Tensor view(const Tensor& x, const Shape& shape) {
  return show_reshaped(x, view::reshape(x, shape));
}

Tensor reshape(const Tensor& x, const Shape& shape) {
  if (std::optional<Tensor> y = view::try_reshape(x, shape)) return show_reshaped(x, *y);
  return view(contiguous(x), shape);
}

Tensor flatten(const Tensor& x, int64_t first, int64_t last) {
  const int begin = wrap_dim(first, x.dim(), "flatten");
  const int end = wrap_dim(last, x.dim(), "flatten");
  WEFT_CHECK(begin <= end, "flatten: first dimension {} lies behind the last, {}", first, last);
  Shape shape = x.shape();
  for (int i = end; i > begin; --i) {
    shape[begin] *= shape[begin + 1];
    shape.erase(begin + 1);
  }
  return reshape(x, shape);
}

Tensor transpose(const Tensor& x, int64_t dim0, int64_t dim1) {
  return show("transpose", x, view::transpose(x, dim0, dim1),
              [=](const Backward& b) -> Tensors { return {transpose(b.dy(), dim0, dim1)}; });
}

Tensor permute(const Tensor& x, const Shape& order) {
  Tensor y = view::permute(x, order);
  Shape inverse = order;
  for (int i = 0; i < order.size(); ++i) inverse[wrap_dim(order[i], x.dim(), "permute")] = i;
  return show("permute", x, y,
              [inverse](const Backward& b) -> Tensors { return {permute(b.dy(), inverse)}; });
}

Tensor expand(const Tensor& x, const Shape& shape) {
  if (shape == x.shape()) return x;
  Tensor y = view::expand(x, shape);
  if (y.shape() == x.shape()) return x;
  return show("expand", x, y,
              [old = x.shape()](const Backward& b) -> Tensors { return {sum_to(b.dy(), old)}; });
}

Tensor squeeze(const Tensor& x, int64_t dim) {
  const int d = wrap_dim(dim, x.dim(), "squeeze");
  if (x.shape()[d] != 1) return x;
  return show("squeeze", x, view::squeeze(x, d),
              [d](const Backward& b) -> Tensors { return {unsqueeze(b.dy(), d)}; });
}

Tensor unsqueeze(const Tensor& x, int64_t dim) {
  const int d = wrap_dim(dim, x.dim() + 1, "unsqueeze");
  return show("unsqueeze", x, view::unsqueeze(x, d),
              [d](const Backward& b) -> Tensors { return {squeeze(b.dy(), d)}; });
}

Tensor slice(const Tensor& x, int64_t dim, int64_t begin, int64_t end, int64_t step) {
  Tensor y = view::slice(x, dim, begin, end, step);
  const int d = wrap_dim(dim, x.dim(), "slice");
  const int64_t size = x.shape()[d];
  const int64_t first = std::clamp<int64_t>(begin < 0 ? begin + size : begin, 0, size);
  return show("slice", x, y, [=, shape = x.shape()](const Backward& b) -> Tensors {
    return {embed(b.dy(), shape, d, first, step)};
  });
}

Tensor narrow(const Tensor& x, int64_t dim, int64_t begin, int64_t length) {
  view::narrow(x, dim, begin, length);  // its checks are stricter than slice's
  return slice(x, dim, begin, begin + length);
}

Tensor select(const Tensor& x, int64_t dim, int64_t index) {
  Tensor y = view::select(x, dim, index);
  const int d = wrap_dim(dim, x.dim(), "select");
  const int64_t i = index < 0 ? index + x.shape()[d] : index;
  return show("select", x, y, [=, shape = x.shape()](const Backward& b) -> Tensors {
    return {embed(unsqueeze(b.dy(), d), shape, d, i, 1)};
  });
}

Tensor diagonal(const Tensor& x, int64_t offset, int64_t dim1, int64_t dim2) {
  const int a = wrap_dim(dim1, x.dim(), "diagonal"), b = wrap_dim(dim2, x.dim(), "diagonal");
  WEFT_CHECK(a != b, "diagonal: expected two dimensions of {}, got {} twice", x, a);
  const auto part = [=](const Tensor& whole) {
    const int64_t rows = whole.shape()[a], columns = whole.shape()[b];
    const int64_t down = offset < 0 ? -offset : 0, right = offset < 0 ? 0 : offset;
    const int64_t length = std::max<int64_t>(0, std::min(rows - down, columns - right));
    Shape shape = whole.shape();
    Strides strides = whole.strides();
    const int64_t begin = length > 0 ? down * strides[a] + right * strides[b] : 0;
    const int64_t step = strides[a] + strides[b];
    for (int d : {std::max(a, b), std::min(a, b)}) shape.erase(d), strides.erase(d);
    shape.push_back(length);
    strides.push_back(step);
    return Tensor::view_of(whole.storage(), shape, strides, whole.offset() + begin, whole.dtype());
  };
  return show("diagonal", x, part(x), [=, shape = x.shape()](const Backward& g) -> Tensors {
    Tensor dx = Tensor::zeros(shape, g.dy().dtype(), g.dy().device());
    Tensor target = diagonal(dx, offset, a, b);
    copy_(target, g.dy());
    return {dx};
  });
}

Tensors split(const Tensor& x, int64_t size, int64_t dim) {
  WEFT_CHECK(size > 0, "split: the size of a piece must be positive, got {}", size);
  const int64_t total = x.size(dim);
  Tensors pieces;
  int64_t begin = 0;
  do {  // one piece at least, though it be empty
    pieces.push_back(narrow(x, dim, begin, std::min(size, total - begin)));
    begin += size;
  } while (begin < total);
  return pieces;
}

Tensors chunk(const Tensor& x, int64_t pieces, int64_t dim) {
  WEFT_CHECK(pieces > 0, "chunk: the number of pieces must be positive, got {}", pieces);
  return split(x, std::max<int64_t>(1, (x.size(dim) + pieces - 1) / pieces), dim);
}

Tensor cat(const Tensors& tensors, int64_t dim) {
  WEFT_CHECK(!tensors.empty(), "cat: expected at least one tensor");
  const int d = wrap_dim(dim, tensors[0].dim(), "cat");
  Shape shape = tensors[0].shape();
  shape[d] = 0;
  DType dtype = tensors[0].dtype();
  std::vector<std::pair<int64_t, DType>> pieces;  // sizes and dtypes
  for (const Tensor& tensor : tensors) {
    Shape expected = tensors[0].shape();
    if (tensor.dim() == expected.size()) expected[d] = tensor.shape()[d];
    WEFT_CHECK(tensor.shape() == expected, "cat: {} and {} differ in another dimension than {}",
               tensors[0], tensor, d);
    WEFT_CHECK(tensor.device() == tensors[0].device(), "cat: {} and {} are on different devices",
               tensors[0], tensor);
    dtype = promote(dtype, tensor.dtype());
    shape[d] += tensor.shape()[d];
    pieces.emplace_back(tensor.shape()[d], tensor.dtype());
  }
  Tensor y = Tensor::empty(shape, dtype, tensors[0].device());
  int64_t begin = 0;
  for (const Tensor& tensor : tensors) {
    raw::copy(tensor, view::narrow(y, d, begin, tensor.shape()[d]));
    begin += tensor.shape()[d];
  }
  return record("cat", tensors, y, {}, [d, pieces](const Backward& b) -> Tensors {
    Tensors gradients(pieces.size());
    int64_t begin = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto [size, dtype] = pieces[i];
      if (b.needs(i)) gradients[i] = cast(narrow(b.dy(), d, begin, size), dtype);
      begin += size;
    }
    return gradients;
  });
}

Tensor stack(const Tensors& tensors, int64_t dim) {
  WEFT_CHECK(!tensors.empty(), "stack: expected at least one tensor");
  Tensors rows;
  for (const Tensor& tensor : tensors) {
    WEFT_CHECK(tensor.shape() == tensors[0].shape(), "stack: {} and {} differ in shape", tensors[0],
               tensor);
    rows.push_back(unsqueeze(tensor, dim));
  }
  return cat(rows, wrap_dim(dim, tensors[0].dim() + 1, "stack"));
}

}  // namespace weft::ops
