#include "core/shape.h"

#include <fmt/ranges.h>

namespace weft {

Shape::Shape(std::span<const int64_t> values) {
  WEFT_CHECK(values.size() <= kMaxDims, "a tensor has at most {} dimensions, got {}", kMaxDims,
             values.size());
  size_ = static_cast<int>(values.size());
  std::copy(values.begin(), values.end(), values_.begin());
}

Shape Shape::filled(int n, int64_t value) {
  Shape shape;
  for (int i = 0; i < n; ++i) shape.push_back(value);
  return shape;
}

void Shape::insert(int position, int64_t value) {
  WEFT_CHECK(size_ < kMaxDims, "a tensor has at most {} dimensions", kMaxDims);
  std::copy_backward(begin() + position, end(), end() + 1);
  values_[position] = value;
  ++size_;
}

void Shape::erase(int position) {
  std::copy(begin() + position + 1, end(), begin() + position);
  --size_;
}

std::optional<int64_t> try_numel(const Shape& shape) {
  int64_t n = 1;
  bool is_empty = false;
  for (int64_t size : shape) {
    is_empty |= size == 0;
    if (size != 0 && __builtin_mul_overflow(n, size, &n)) return std::nullopt;
  }
  return is_empty ? 0 : n;
}

int64_t numel(const Shape& shape) {
  const std::optional<int64_t> n = try_numel(shape);
  WEFT_CHECK(n, "the sizes of shape {} multiply to more than 2^63 - 1", shape);
  return *n;
}

Span span_of(const Shape& shape, const Strides& strides) {
  if (numel(shape) == 0) return {};
  int64_t first = 0, last = 0, size = 0;
  bool overflows = false;
  for (int i = 0; i < shape.size(); ++i) {
    int64_t reach;
    overflows |= __builtin_mul_overflow(shape[i] - 1, strides[i], &reach);
    int64_t& end = reach < 0 ? first : last;
    overflows |= __builtin_add_overflow(end, reach, &end);
  }
  overflows |= __builtin_sub_overflow(last, first, &size) || __builtin_add_overflow(size, 1, &size);
  WEFT_CHECK(!overflows, "strides {} of shape {} reach beyond 2^63 - 1 elements", strides, shape);
  return {first, size};
}

Strides contiguous_strides(const Shape& shape) {
  numel(shape);  // its check bounds every step below
  Strides strides = shape;
  int64_t step = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

Shape broadcast_shapes(const Shape& a, const Shape& b, std::string_view op) {
  const int dims = std::max(a.size(), b.size());
  Shape result = Shape::filled(dims, 1);
  for (int i = 1; i <= dims; ++i) {
    const int64_t x = i <= a.size() ? a[a.size() - i] : 1;
    const int64_t y = i <= b.size() ? b[b.size() - i] : 1;
    WEFT_CHECK(x == y || x == 1 || y == 1, "{}: shapes {} and {} do not broadcast", op, a, b);
    result[dims - i] = x == 1 ? y : x;
  }
  return result;
}

int wrap_dim(int64_t dim, int dims, std::string_view op) {
  WEFT_CHECK(dim >= -dims && dim < dims,
             "{}: dimension {} is out of range for a tensor of {} dimensions", op, dim, dims);
  return static_cast<int>(dim < 0 ? dim + dims : dim);
}

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace weft
