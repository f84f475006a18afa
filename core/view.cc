#include "core/view.h"

#include <limits>

namespace weft::view {
namespace {

Tensor with(const Tensor& x, const Shape& shape, const Strides& strides, int64_t offset) {
  return Tensor::view_of(x.storage(), shape, strides, offset, x.dtype());
}

}  // namespace

Tensor slice(const Tensor& x, int64_t dim, int64_t begin, int64_t end, int64_t step) {
  const int d = wrap_dim(dim, x.dim(), "slice");
  WEFT_CHECK(step > 0, "slice: step must be positive, got {}", step);
  const int64_t size = x.shape()[d];
  const auto clamp = [size](int64_t i) {
    return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size);
  };
  begin = clamp(begin);
  end = std::max(clamp(end), begin);
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape[d] = (end - begin) / step + ((end - begin) % step != 0);
  strides[d] *= std::min(step, std::max<int64_t>(size, 1));  // a larger step leaves one element
  return with(x, shape, strides, x.offset() + begin * x.strides()[d]);
}

Tensor narrow(const Tensor& x, int64_t dim, int64_t begin, int64_t length) {
  const int d = wrap_dim(dim, x.dim(), "narrow");
  int64_t end;
  if (__builtin_add_overflow(begin, length, &end)) end = std::numeric_limits<int64_t>::max();
  WEFT_CHECK(begin >= 0 && length >= 0 && end <= x.shape()[d],
             "narrow: [{}, {}) lies outside dimension {} of {}", begin, end, d, x);
  return slice(x, d, begin, end);
}

Tensor select(const Tensor& x, int64_t dim, int64_t index) {
  const int d = wrap_dim(dim, x.dim(), "select");
  const int64_t size = x.shape()[d];
  WEFT_CHECK(index >= -size && index < size, "select: index {} is outside dimension {} of {}",
             index, d, x);
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape.erase(d);
  strides.erase(d);
  return with(x, shape, strides, x.offset() + (index < 0 ? index + size : index) * x.strides()[d]);
}

Tensor transpose(const Tensor& x, int64_t dim0, int64_t dim1) {
  const int a = wrap_dim(dim0, x.dim(), "transpose");
  const int b = wrap_dim(dim1, x.dim(), "transpose");
  Shape shape = x.shape();
  Strides strides = x.strides();
  std::swap(shape[a], shape[b]);
  std::swap(strides[a], strides[b]);
  return with(x, shape, strides, x.offset());
}

Tensor permute(const Tensor& x, const Shape& order) {
  WEFT_CHECK(order.size() == x.dim(), "permute: order {} does not have the {} dimensions of {}",
             order, x.dim(), x);
  Shape shape = x.shape();
  Strides strides = x.strides();
  bool seen[kMaxDims] = {};
  for (int i = 0; i < order.size(); ++i) {
    const int d = wrap_dim(order[i], x.dim(), "permute");
    WEFT_CHECK(!seen[d], "permute: order {} names dimension {} twice", order, d);
    seen[d] = true;
    shape[i] = x.shape()[d];
    strides[i] = x.strides()[d];
  }
  return with(x, shape, strides, x.offset());
}

Shape infer_shape(const Shape& shape, int64_t numel, std::string_view op) {
  Shape result = shape;
  int unknown = -1;
  for (int i = 0; i < shape.size(); ++i) {
    if (shape[i] == -1) {
      WEFT_CHECK(unknown < 0, "{}: at most one size may be -1, got {}", op, shape);
      unknown = i;
      result[i] = 1;
    }
    WEFT_CHECK(shape[i] >= -1, "{}: sizes must not be negative, got {}", op, shape);
  }
  const int64_t known = weft::numel(result);
  if (unknown >= 0 && known > 0) result[unknown] = numel / known;
  WEFT_CHECK(weft::numel(result) == numel && (unknown < 0 || known > 0),
             "{}: {} elements do not fit shape {}", op, numel, shape);
  return result;
}

std::optional<Tensor> try_reshape(const Tensor& x, const Shape& wanted) {
  const Shape shape = infer_shape(wanted, x.numel(), "reshape");
  if (x.is_contiguous() || x.numel() == 0) {
    return with(x, shape, contiguous_strides(shape), x.offset());
  }
  // Old dimensions fall into runs that are contiguous among themselves; each new dimension must lie
  // within one run.
  Strides strides = Strides::filled(shape.size(), 0);
  int old_dim = x.dim() - 1;
  int new_dim = shape.size() - 1;
  while (old_dim >= 0) {
    int64_t run = x.shape()[old_dim];
    int64_t step = x.strides()[old_dim];
    while (old_dim > 0 && (x.shape()[old_dim - 1] == 1 ||
                           (run > 1 ? x.strides()[old_dim - 1] == step * run : run == 1))) {
      if (run == 1) step = x.strides()[old_dim - 1];
      --old_dim;
      run *= x.shape()[old_dim];
    }
    --old_dim;
    while (new_dim >= 0 && (run > 1 || shape[new_dim] == 1)) {
      if (run % shape[new_dim] != 0) return std::nullopt;
      strides[new_dim] = step;
      step *= shape[new_dim];
      run /= shape[new_dim];
      --new_dim;
    }
    if (run != 1) return std::nullopt;
  }
  return with(x, shape, strides, x.offset());
}

Tensor reshape(const Tensor& x, const Shape& shape) {
  std::optional<Tensor> result = try_reshape(x, shape);
  WEFT_CHECK(result, "reshape: {} with strides {} cannot become {} without a copy", x, x.strides(),
             shape);
  return *std::move(result);
}

Tensor expand(const Tensor& x, const Shape& wanted) {
  const int extra = wanted.size() - x.dim();
  WEFT_CHECK(extra >= 0, "expand: {} has more dimensions than {}", x, wanted);
  Shape shape = wanted;
  Strides strides = Strides::filled(wanted.size(), 0);
  for (int i = extra; i < wanted.size(); ++i) {
    const int64_t size = x.shape()[i - extra];
    if (shape[i] == -1) shape[i] = size;
    WEFT_CHECK(size == shape[i] || size == 1, "expand: {} does not expand to {}", x, wanted);
    strides[i] = size == shape[i] ? x.strides()[i - extra] : 0;
  }
  for (int i = 0; i < extra; ++i) {
    WEFT_CHECK(shape[i] >= 0, "expand: a new dimension needs a size, got {}", wanted);
  }
  return with(x, shape, strides, x.offset());
}

Tensor squeeze(const Tensor& x, int64_t dim) {
  const int d = wrap_dim(dim, x.dim(), "squeeze");
  return x.shape()[d] == 1 ? select(x, d, 0) : x.alias();
}

Tensor squeeze(const Tensor& x) {
  Shape shape;
  Strides strides;
  for (int i = 0; i < x.dim(); ++i) {
    if (x.shape()[i] == 1) continue;
    shape.push_back(x.shape()[i]);
    strides.push_back(x.strides()[i]);
  }
  return with(x, shape, strides, x.offset());
}

Tensor unsqueeze(const Tensor& x, int64_t dim) {
  const int d = wrap_dim(dim, x.dim() + 1, "unsqueeze");
  Shape shape = x.shape();
  Strides strides = x.strides();
  strides.insert(d, d < x.dim() ? x.strides()[d] * x.shape()[d] : 1);
  shape.insert(d, 1);
  return with(x, shape, strides, x.offset());
}

bool overlaps_itself(const Tensor& x) {
  // From the smallest stride on, each must step over all that the ones before it reach. Views of a
  // contiguous tensor that fail this repeat elements.
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (int d = 0; d < x.dim(); ++d) {
    if (x.shape()[d] > 1) dims.emplace_back(std::abs(x.strides()[d]), x.shape()[d]);
  }
  std::ranges::sort(dims);
  int64_t reached = 1;
  for (const auto& [stride, size] : dims) {
    if (stride < reached) return x.numel() > 0;
    reached = stride * (size - 1) + reached;
  }
  return false;
}

namespace {

/// The bytes that a tensor's elements span.
std::pair<uintptr_t, uintptr_t> address_range(const Tensor& x) {
  const Span span = span_of(x.shape(), x.strides());
  const auto size = static_cast<int64_t>(x.itemsize());
  const auto begin =
      reinterpret_cast<uintptr_t>(x.raw()) + static_cast<uintptr_t>(span.first * size);
  return {begin, begin + static_cast<uintptr_t>(span.size * size)};
}

/// Of different storages, of which others' memory may be in both: bytes are compared from the first
/// to the last. The same place in both is no sharing, a part of it is.
bool share_memory(const Tensor& a, const Tensor& b) {
  if (a.storage()->is_owner() && b.storage()->is_owner()) return false;
  const bool is_same = a.raw() == b.raw() && a.dtype() == b.dtype() && a.shape() == b.shape() &&
                       a.strides() == b.strides();
  const auto [begin_a, end_a] = address_range(a);
  const auto [begin_b, end_b] = address_range(b);
  return !is_same && begin_a < end_b && begin_b < end_a;
}

}  // namespace

bool share_elements(const Tensor& a, const Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0) return false;
  if (a.storage() != b.storage()) return share_memory(a, b);
  WEFT_CHECK(a.dtype() == b.dtype(), "{} and {} name the same memory by different dtypes", a, b);
  const Span in_a = span_of(a.shape(), a.strides()), in_b = span_of(b.shape(), b.strides());
  const int64_t first_a = a.offset() + in_a.first, first_b = b.offset() + in_b.first;
  if (first_a + in_a.size <= first_b || first_b + in_b.size <= first_a) return false;
  std::vector<bool> belongs(in_a.size);
  for_each_offset(a.shape(), a.strides(), [&](int64_t i) { belongs[i - in_a.first] = true; });
  bool shared = false;
  for_each_offset(b.shape(), b.strides(), [&](int64_t i) {
    const int64_t place = b.offset() + i - first_a;
    shared |= place >= 0 && place < in_a.size && belongs[place];
  });
  return shared;
}

}  // namespace weft::view
