#include "tests/onnx/ops.h"

namespace weft::onnx {

const OpType* find_op(std::string_view name) {
  for (const auto& table : {elementwise_ops(), shape_ops(), reduce_ops(), network_ops()}) {
    for (const OpType& op : table) {
      if (op.name == name) return &op;
    }
  }
  return nullptr;
}

std::vector<int64_t> to_ints(const Tensor& tensor) {
  WEFT_CHECK(is_integral(tensor.dtype()), "expected integers, got {}", tensor);
  std::vector<int64_t> values;
  for (double value : tensor.to_vector()) values.push_back(static_cast<int64_t>(value));
  return values;
}

Tensor constant_like(const Tensor& x, double value) { return ops::full({}, value, x.dtype()); }

Tensor wrap_indices(const Tensor& index, int64_t size) {
  const Tensor wrapped = ops::add(index, constant_like(index, static_cast<double>(size)));
  return ops::where(ops::lt(index, constant_like(index, 0)), wrapped, index);
}

}  // namespace weft::onnx
