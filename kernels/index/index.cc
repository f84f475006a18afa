#include "kernels/index/index.h"

namespace weft::kernels {

#define WEFT_OP index
#define WEFT_PROBLEM IndexProblem
#include "kernels/op_list_inl.h"

std::string IndexProblem::describe() const {
  return fmt::format("{}(x {}, index {}, y {}, axis={})", name(kind), x, index, y, axis);
}

std::string_view name(IndexKind kind) {
  static constexpr std::string_view kNames[] = {"gather", "index_select", "scatter", "scatter_add",
                                                "index_add"};
  return kNames[static_cast<size_t>(kind)];
}

Indices checked_indices(const IndexProblem& p) {
  const int axis = wrap_dim(p.axis, p.indexed().dim(), name(p.kind));
  const int64_t size = p.indexed().shape()[axis];
  const auto for_each_index = [&](auto&& f) {
    const auto read = [&](const auto* data) {
      for_each_offset(p.index.shape(), p.index.strides(),
                      [&](int64_t offset) { f(int64_t{data[offset]}); });
    };
    p.index.dtype() == DType::i64 ? read(p.index.data<int64_t>()) : read(p.index.data<int32_t>());
  };
  const int64_t least = p.wrap_negative ? -size : 0;
  int64_t number = 0;
  bool wraps = false;
  for_each_index([&](int64_t i) {
    if (i < least || i >= size) [[unlikely]] {
      WEFT_FAIL("{}: index {} at position {} is outside dimension {} of size {} of {}",
                name(p.kind), i, place_of(number, p.index.shape()), axis, size, p.indexed());
    }
    wraps |= i < 0;
    ++number;
  });
  if (p.index.dtype() == DType::i64 && p.index.is_contiguous() && !wraps) {
    return {{}, {p.index.data<int64_t>(), static_cast<size_t>(number)}};
  }
  std::vector<int64_t> copy;
  copy.reserve(number);
  for_each_index([&](int64_t i) { copy.push_back(i < 0 ? i + size : i); });
  const std::span<const int64_t> list = copy;
  return {std::move(copy), list};
}

}  // namespace weft::kernels
