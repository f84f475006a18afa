// Copies with their elements elsewhere: mirrored, moved around, repeated, padded, cut to triangles.
#include <functional>
#include <limits>
#include <numeric>

#include "autograd/ops.h"
#include "autograd/raw.h"
#include "core/view.h"

namespace weft::ops {
namespace {

/// x read backwards along the dimensions that are marked.
Tensor mirrored(const Tensor& x, const std::array<bool, kMaxDims>& backwards) {
  Strides strides = x.strides();
  int64_t offset = x.offset();
  for (int d = 0; d < x.dim(); ++d) {
    if (!backwards[d] || x.numel() == 0) continue;
    offset += (x.shape()[d] - 1) * strides[d];
    strides[d] = -strides[d];
  }
  const Tensor y = raw::empty_like(x);
  raw::copy(Tensor::view_of(x.storage(), x.shape(), strides, offset, x.dtype()), y);
  return record("flip", {x}, y, {}, [backwards](const Backward& b) -> Tensors {
    return {mirrored(b.dy(), backwards)};
  });
}

/// Elements moved on along one dimension.
Tensor rotated(const Tensor& x, int64_t shift, int64_t dim) {
  const int64_t size = x.size(dim);
  if (size == 0) return clone(x);
  const int64_t front = (shift % size + size) % size;
  return cat({narrow(x, dim, size - front, front), narrow(x, dim, 0, size - front)}, dim);
}

/// The matrices' columns, less their rows, on x's device: [rows, columns], i64.
Tensor distance_from_diagonal(std::string_view op, const Tensor& x) {
  WEFT_CHECK(x.defined() && x.dim() >= 2, "{}: expected matrices [..., M, N], got {}", op, x);
  return sub(to(arange(0, x.size(-1)), x.device()),
             to(unsqueeze(arange(0, x.size(-2)), 1), x.device()));
}

Tensor triangle(std::string_view op, const Tensor& x, int64_t diagonal,
                Tensor (*is_cut)(const Tensor&, const Tensor&)) {
  const Tensor distance = distance_from_diagonal(op, x);
  const Tensor limit = full({}, static_cast<double>(diagonal), DType::i64, x.device());
  return masked_fill(x, is_cut(distance, limit), 0);
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

/// The place in [0, size) that a padded place beside it repeats.
int64_t source_of(int64_t place, int64_t size, Padding padding) {
  switch (padding) {
    case Padding::kReflect:
      return place < 0 ? -place : place >= size ? 2 * (size - 1) - place : place;
    case Padding::kReplicate:
      return std::clamp<int64_t>(place, 0, size - 1);
    default:
      return (place + size) % size;
  }
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
  bool is_copy = false;
  for (int d = 0; d < repeats.size(); ++d) {
    WEFT_CHECK(repeats[d] >= 0, "repeat: the numbers must not be negative, got {}", repeats);
    if (repeats[d] == 1) continue;
    const Shape shape = y.shape();
    // Rows of all that lies before, repeated as a whole: three dimensions, however many there are.
    const int64_t before =
        std::accumulate(shape.begin(), shape.begin() + d, int64_t{1}, std::multiplies<>());
    const int64_t behind =
        std::accumulate(shape.begin() + d, shape.end(), int64_t{1}, std::multiplies<>());
    Shape result = shape;
    result[d] *= repeats[d];
    y = reshape(expand(reshape(y, {before, 1, behind}), {before, repeats[d], behind}), result);
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
  Tensor y = x;
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
    std::vector<int64_t> places;
    for (int64_t p = -before; p < size + after; ++p) places.push_back(source_of(p, size, padding));
    const auto count = static_cast<int64_t>(places.size());
    y = index_select(y, d, to(Tensor::from(places, {count}), x.device()));
  }
  return y.is_same(x) ? clone(x) : y;
}

}  // namespace weft::ops
