// Copies with their elements elsewhere: mirrored, moved around, repeated, padded, cut to triangles.
#include <functional>
#include <limits>
#include <numeric>

#include "autograd/ops.h"
#include "autograd/raw.h"
#include "core/view.h"
#include "kernels/binary/binary.h"

namespace weft::ops {
namespace {

/// A view of x, backwards along one dimension.
Tensor backwards_view(const Tensor& x, int dim) {
  if (x.numel() == 0) return x;
  Strides strides = x.strides();
  const int64_t last = x.offset() + (x.shape()[dim] - 1) * strides[dim];
  strides[dim] = -strides[dim];
  return Tensor::view_of(x.storage(), x.shape(), strides, last, x.dtype());
}

/// x read backwards along the dimensions that are marked.
Tensor mirrored(const Tensor& x, const std::array<bool, kMaxDims>& backwards) {
  Tensor source = x;
  for (int d = 0; d < x.dim(); ++d) {
    if (backwards[d]) source = backwards_view(source, d);
  }
  const Tensor y = raw::empty_like(x);
  raw::copy(source, y);
  return record("flip", {x}, y, {}, [backwards](const Backward& b) -> Tensors {
    return {mirrored(b.dy(), backwards)};
  });
}

/// Elements moved on along one dimension.
Tensor rotated(const Tensor& x, int64_t shift, int dim) {
  const int64_t size = x.size(dim), front = size > 0 ? (shift % size + size) % size : 0;
  const Tensor y = raw::empty_like(x);
  raw::copy(view::narrow(x, dim, size - front, front), view::narrow(y, dim, 0, front));
  raw::copy(view::narrow(x, dim, 0, size - front), view::narrow(y, dim, front, size - front));
  return record("roll", {x}, y, {},
                [=](const Backward& b) -> Tensors { return {rotated(b.dy(), -shift, dim)}; });
}

/// x with 0 where is_cut(column, row + diagonal).
Tensor triangle(std::string_view op, const Tensor& x, int64_t diagonal,
                Tensor (*is_cut)(const Tensor&, const Tensor&)) {
  WEFT_CHECK(x.defined() && x.dim() >= 2, "{}: expected matrices [..., M, N], got {}", op, x);
  const Tensor columns = to(arange(0, x.size(-1)), x.device());
  const Tensor limits = to(unsqueeze(arange(diagonal, diagonal + x.size(-2)), 1), x.device());
  return masked_fill(x, is_cut(columns, limits), 0);
}

/// Constant padding. Its gradient is the opposite padding.
Tensor pad_constant(const Tensor& x, const std::vector<int64_t>& pads, double value) {
  Tensor from = x, to;
  Shape shape = x.shape();
  for (size_t i = 0; i < pads.size() / 2; ++i) {
    const int d = x.dim() - 1 - static_cast<int>(i);
    shape[d] += pads[2 * i] + pads[2 * i + 1];
    WEFT_CHECK(shape[d] >= 0, "pad: {} leave nothing of dimension {} of {}", Shape(pads), d, x);
  }
  const Tensor y = to = full(shape, value, x.dtype(), x.device());
  for (size_t i = 0; i < pads.size() / 2; ++i) {
    const int d = x.dim() - 1 - static_cast<int>(i);
    const int64_t before = pads[2 * i], after = pads[2 * i + 1];
    // What both have: a part of y where it is wider, a part of x where it was cut.
    const int64_t cut = std::max<int64_t>(0, -before), wider = std::max<int64_t>(0, before);
    const int64_t length = std::max<int64_t>(0, x.shape()[d] - cut - std::max<int64_t>(0, -after));
    from = view::narrow(from, d, length > 0 ? cut : 0, length);
    to = view::narrow(to, d, length > 0 ? wider : 0, length);
  }
  raw::copy(from, to);
  std::vector<int64_t> opposite;
  for (int64_t pad : pads) opposite.push_back(-pad);
  return record("pad", {x}, y, {}, [opposite](const Backward& b) -> Tensors {
    return {pad_constant(b.dy(), opposite, 0)};
  });
}

/// Two numbers for each padded dimension, the last dimension first.
using Pads = std::vector<int64_t>;

enum class Side { kFront, kBack };

/// The elements of `middle` that `count` places beyond one of its ends repeat, in their order.
Tensor repeated(const Tensor& middle, int dim, Side side, int64_t count, Padding padding) {
  const int64_t size = middle.shape()[dim];
  const bool is_front = side == Side::kFront;
  switch (padding) {
    case Padding::kReflect:
      return backwards_view(view::narrow(middle, dim, is_front ? 1 : size - 1 - count, count), dim);
    case Padding::kReplicate: {
      Shape shape = middle.shape();
      shape[dim] = count;
      return view::expand(view::narrow(middle, dim, is_front ? 0 : size - 1, 1), shape);
    }
    default:
      return view::narrow(middle, dim, is_front ? size - count : 0, count);
  }
}

/// Calls f(dim, side, border, middle) for each border of a padded y: views of its places, and of
/// what lies between the two borders of the dimension. The last dimension comes first, without the
/// borders of those that follow; backwards the order is reversed. Returns y without any border.
template <class F>
Tensor for_each_border(const Tensor& y, const Pads& pads, bool backwards, F&& f) {
  const size_t dims = pads.size() / 2;
  const auto dim_of = [&](size_t i) { return y.dim() - 1 - static_cast<int>(i); };
  Tensors parts(dims + 1, y);  // [i]: without the borders of all dimensions from the i-th on
  for (size_t i = dims; i-- > 0;) {
    const int64_t size = parts[i + 1].shape()[dim_of(i)] - pads[2 * i] - pads[2 * i + 1];
    parts[i] = view::narrow(parts[i + 1], dim_of(i), pads[2 * i], size);
  }
  for (size_t k = 0; k < dims; ++k) {
    const size_t i = backwards ? dims - 1 - k : k;
    const int dim = dim_of(i);
    const Tensor &middle = parts[i], &whole = parts[i + 1];
    const int64_t before = pads[2 * i], after = pads[2 * i + 1], end = middle.shape()[dim] + before;
    if (before > 0) f(dim, Side::kFront, view::narrow(whole, dim, 0, before), middle);
    if (after > 0) f(dim, Side::kBack, view::narrow(whole, dim, end, after), middle);
  }
  return parts[0];
}

Tensor without_borders(const Tensor& dy, const Pads& pads, Padding padding);

/// x in the middle, and beside it what it repeats.
Tensor with_borders(const Tensor& x, const Pads& pads, Padding padding) {
  Shape shape = x.shape();
  for (size_t i = 0; i < pads.size(); ++i) {
    shape[x.dim() - 1 - static_cast<int>(i / 2)] += pads[i];
  }
  const Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  raw::copy(x, for_each_border(y, pads, false, [](auto&&...) {}));
  for_each_border(y, pads, false,
                  [&](int dim, Side side, const Tensor& border, const Tensor& middle) {
                    raw::copy(repeated(middle, dim, side, border.shape()[dim], padding), border);
                  });
  return record("pad", {x}, y, {}, [=](const Backward& b) -> Tensors {
    return {without_borders(b.dy(), pads, padding)};
  });
}

/// The gradient of that: borders are added to what they repeat, in f32 at least.
Tensor without_borders(const Tensor& dy, const Pads& pads, Padding padding) {
  const DType wide = raw::widened(dy.dtype());
  const Tensor sums = Tensor::empty(dy.shape(), wide, dy.device());
  raw::copy(dy, sums);
  const Tensor middle = for_each_border(
      sums, pads, true, [&](int dim, Side side, const Tensor& border, const Tensor& middle) {
        const NoGrad guard;
        const bool is_one = padding == Padding::kReplicate;
        const Tensor added = is_one ? sum(border, {dim}, true) : border;
        const Tensor target = repeated(middle, dim, side, added.shape()[dim], padding);
        kernels::binary({.op = kernels::BinaryOp::kAdd, .a = target, .b = added, .y = target});
      });
  const Tensor dx = Tensor::empty(middle.shape(), dy.dtype(), dy.device());
  raw::copy(middle, dx);
  return record("pad_backward", {dy}, dx, {}, [=](const Backward& b) -> Tensors {
    return {with_borders(b.dy(), pads, padding)};
  });
}

}  // namespace

Tensor flip(const Tensor& x, const Shape& dims) {
  std::array<bool, kMaxDims> backwards = {};
  for (int64_t dim : dims) {
    const int d = wrap_dim(dim, x.dim(), "flip");
    WEFT_CHECK(!backwards[d], "flip: dimension {} is named twice in {}", d, dims);
    backwards[d] = true;
  }
  return mirrored(x, backwards);
}

Tensor roll(const Tensor& x, const Shape& shifts, const Shape& dims) {
  if (dims.empty()) {
    WEFT_CHECK(shifts.size() == 1, "roll: expected one shift without dimensions, got {}", shifts);
    return reshape(rotated(reshape(x, {-1}), shifts[0], 0), x.shape());
  }
  WEFT_CHECK(shifts.size() == dims.size(),
             "roll: expected a shift for each of the dimensions {}, "
             "got {}",
             dims, shifts);
  Tensor y = x;
  for (int i = 0; i < dims.size(); ++i)
    y = rotated(y, shifts[i], wrap_dim(dims[i], x.dim(), "roll"));
  return y;
}

Tensor repeat(const Tensor& x, const Shape& repeats) {
  WEFT_CHECK(repeats.size() >= x.dim(), "repeat: {} are fewer numbers than the dimensions of {}",
             repeats, x);
  Tensor y = x;
  while (y.dim() < repeats.size()) y = unsqueeze(y, 0);
  for (int64_t number : repeats) {
    WEFT_CHECK(number >= 0, "repeat: the numbers must not be negative, got {}", repeats);
  }
  bool is_copy = false;
  // A number and what it repeats are two dimensions; those that are not repeated join the one
  // before.
  constexpr int kAtOnce = (kMaxDims - 1) / 2;
  for (int d = 0; d < repeats.size();) {
    const Shape shape = y.shape();
    Shape once, often, result = shape;
    int64_t block =
        std::accumulate(shape.begin(), shape.begin() + d, int64_t{1}, std::multiplies<>());
    int taken = 0;
    for (; d < repeats.size() && (taken < kAtOnce || repeats[d] == 1); ++d) {
      if (repeats[d] == 1) {
        block *= shape[d];
        continue;
      }
      for (int64_t size : {block, int64_t{1}}) once.push_back(size);
      for (int64_t size : {block, repeats[d]}) often.push_back(size);
      block = shape[d];
      result[d] *= repeats[d];
      ++taken;
    }
    block *= std::accumulate(shape.begin() + d, shape.end(), int64_t{1}, std::multiplies<>());
    once.push_back(block);
    often.push_back(block);
    if (taken == 0) continue;
    y = reshape(expand(reshape(y, once), often), result);
    is_copy = true;
  }
  return is_copy ? y : clone(y);
}

Tensor tile(const Tensor& x, const Shape& repeats) {
  Shape all = repeats;
  while (all.size() < x.dim()) all.insert(0, 1);
  return repeat(x, all);
}

Tensors meshgrid(const Tensors& vectors, Indexing indexing) {
  WEFT_CHECK(!vectors.empty(), "meshgrid: expected at least one vector");
  const int dims = static_cast<int>(vectors.size());
  const bool swaps = indexing == Indexing::kXY && dims >= 2;
  Shape grid;
  for (const Tensor& vector : vectors) {
    WEFT_CHECK(vector.dim() <= 1, "meshgrid: expected vectors, got {}", vector);
    grid.push_back(vector.numel());
  }
  if (swaps) std::swap(grid[0], grid[1]);
  Tensors grids;
  for (int i = 0; i < dims; ++i) {
    Shape along = Shape::filled(dims, 1);
    along[swaps && i < 2 ? 1 - i : i] = -1;
    if (vectors[i].numel() == 0) along = grid;
    grids.push_back(expand(reshape(vectors[i], along), grid));
  }
  return grids;
}

Tensor tril(const Tensor& x, int64_t diagonal) { return triangle("tril", x, diagonal, gt); }
Tensor triu(const Tensor& x, int64_t diagonal) { return triangle("triu", x, diagonal, lt); }

Tensor pad(const Tensor& x, const std::vector<int64_t>& pads, Padding padding, double value) {
  WEFT_CHECK(pads.size() % 2 == 0 && pads.size() / 2 <= static_cast<size_t>(x.dim()),
             "pad: expected two numbers for each of at most {} dimensions, got {} numbers", x.dim(),
             pads.size());
  if (padding == Padding::kConstant) return pad_constant(x, pads, value);
  for (size_t i = 0; i < pads.size() / 2; ++i) {
    const int64_t before = pads[2 * i], after = pads[2 * i + 1];
    const int d = x.dim() - 1 - static_cast<int>(i);
    const int64_t size = x.shape()[d];
    const int64_t most = padding == Padding::kReflect    ? size - 1
                         : padding == Padding::kCircular ? size
                                                         : std::numeric_limits<int64_t>::max();
    WEFT_CHECK(size > 0 && before >= 0 && after >= 0 && std::max(before, after) <= most,
               "pad: {} and {} do not fit dimension {} of {}: expected at least 0 and, reflected, "
               "less than its size, around its end at most that",
               before, after, d, x);
  }
  return with_borders(x, pads, padding);
}

}  // namespace weft::ops
