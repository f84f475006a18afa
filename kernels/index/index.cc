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

std::vector<int64_t> checked_indices(const IndexProblem& p) {
  const int axis = wrap_dim(p.axis, p.indexed().dim(), name(p.kind));
  const int64_t size = p.indexed().shape()[axis];
  std::vector<int64_t> indices;
  indices.reserve(p.index.numel());
  const auto read = [&](const auto* data) {
    for_each_offset(p.index.shape(), p.index.strides(), [&](int64_t offset) {
      const int64_t i = data[offset];
      const int64_t wrapped = p.wrap_negative && i < 0 ? i + size : i;
      if (wrapped < 0 || wrapped >= size) [[unlikely]] {
        const Shape position = place_of(static_cast<int64_t>(indices.size()), p.index.shape());
        WEFT_FAIL("{}: index {} at position {} is outside dimension {} of size {} of {}",
                  name(p.kind), i, position, axis, size, p.indexed());
      }
      indices.push_back(wrapped);
    });
  };
  p.index.dtype() == DType::i64 ? read(p.index.data<int64_t>()) : read(p.index.data<int32_t>());
  return indices;
}

}  // namespace weft::kernels
