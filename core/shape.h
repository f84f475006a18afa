// Sizes and strides of tensors: up to eight dimensions, held inline.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"

namespace weft {

inline constexpr int kMaxDims = 8;

/// A short list of int64: the sizes of a tensor, or its strides, or a list of axes.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> values) : Shape(std::span(values.begin(), values.size())) {}
  Shape(const std::vector<int64_t>& values) : Shape(std::span<const int64_t>(values)) {}
  explicit Shape(std::span<const int64_t> values);
  /// n copies of value.
  static Shape filled(int n, int64_t value);

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t& operator[](int i) { return values_[i]; }
  int64_t operator[](int i) const { return values_[i]; }
  int64_t* begin() { return values_.data(); }
  int64_t* end() { return values_.data() + size_; }
  const int64_t* begin() const { return values_.data(); }
  const int64_t* end() const { return values_.data() + size_; }
  int64_t front() const { return values_[0]; }
  int64_t back() const { return values_[size_ - 1]; }

  void push_back(int64_t value) { insert(size_, value); }
  void insert(int position, int64_t value);
  void erase(int position);

  friend bool operator==(const Shape& a, const Shape& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  std::array<int64_t, kMaxDims> values_{};
  int size_ = 0;
};

using Strides = Shape;  // in elements

/// Number of elements: the product of the sizes, 1 for no dimensions. Throws Error naming the shape
/// when the product of the sizes other than 0 exceeds 2^63 - 1, so that no product of some of them
/// overflows either.
int64_t numel(const Shape& shape);
/// As numel; nothing where that throws.
std::optional<int64_t> try_numel(const Shape& shape);
/// The memory that a tensor's elements span: from the least offset that its strides reach, 0 or
/// negative, that many elements.
struct Span {
  int64_t first = 0, size = 0;
};
/// Throws Error naming both when they reach beyond 2^63 - 1 elements.
Span span_of(const Shape& shape, const Strides& strides);
/// Row-major strides.
Strides contiguous_strides(const Shape& shape);
/// NumPy's broadcasting rule; throws Error naming `op` and both shapes.
Shape broadcast_shapes(const Shape& a, const Shape& b, std::string_view op);
/// A dimension counted from the front; negative ones count from the back. Throws Error outside
/// [-dims, dims).
int wrap_dim(int64_t dim, int dims, std::string_view op);
/// "[2, 3]"
std::string to_string(const Shape& shape);

}  // namespace weft

template <>
struct fmt::formatter<weft::Shape> : weft::PlainFormatter {
  auto format(const weft::Shape& shape, fmt::format_context& context) const {
    return write(weft::to_string(shape), context);
  }
};
