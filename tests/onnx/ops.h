// Which Weft ops an ONNX op type stands for.
#pragma once

#include <span>
#include <string_view>

#include "autograd/ops.h"
#include "tests/onnx/model.h"

namespace weft::onnx {

/// How far a floating-point result may lie from ONNX's, whose expected values were computed by
/// NumPy and are rounded themselves. u is the unit roundoff of the result's dtype; integers and
/// bools are always exact.
enum class Accuracy {
  kExact,    // the same value: data movement, comparisons, and single correctly rounded operations
  kRounded,  // 8 u of the value: a function, or a product of a few
  kSummed,   // 16 u of the largest value of the result: sums, where terms cancel
};

/// Inputs and outputs in the order of the node's; an absent optional input is undefined.
struct OpType {
  std::string_view name;
  Accuracy accuracy;
  Tensors (*run)(const Node& node, const Tensors& inputs);
};

std::span<const OpType> elementwise_ops();
std::span<const OpType> shape_ops();
std::span<const OpType> reduce_ops();
std::span<const OpType> network_ops();

/// nullptr when Weft has no such op.
const OpType* find_op(std::string_view name);

/// Input i, undefined when it is absent.
inline Tensor optional(const Tensors& inputs, size_t i) {
  return i < inputs.size() ? inputs[i] : Tensor();
}
/// The elements of an integer tensor.
std::vector<int64_t> to_ints(const Tensor& tensor);
/// A number as a 0-dim tensor of x's dtype, integers included.
Tensor constant_like(const Tensor& x, double value);
/// Negative indices counted from the back of a dimension of `size`.
Tensor wrap_indices(const Tensor& index, int64_t size);

}  // namespace weft::onnx
