// Reductions, and the op types made of them.
#include "tests/onnx/ops.h"

namespace weft::onnx {
namespace {

using enum Accuracy;

using Reduce = Tensor (*)(const Tensor& x, const Shape& dims, bool keepdim);

/// The axes are an attribute, or since opset 13 the second input; none at all means every axis.
template <Reduce kOp>
Tensors reduce(const Node& node, const Tensors& in) {
  const Tensor axes = optional(in, 1);
  const std::vector<int64_t> dims = axes ? to_ints(axes) : node.ints("axes");
  if (dims.empty() && node.i("noop_with_empty_axes", 0)) return {in.at(0)};
  return {kOp(in.at(0), Shape(dims), node.i("keepdims", 1) != 0)};
}

Tensor norm1(const Tensor& x, const Shape& dims, bool keepdim) {
  return ops::sum(ops::abs(x), dims, keepdim);
}
Tensor sum_square(const Tensor& x, const Shape& dims, bool keepdim) {
  return ops::sum(ops::square(x), dims, keepdim);
}
Tensor norm2(const Tensor& x, const Shape& dims, bool keepdim) {
  return ops::sqrt(sum_square(x, dims, keepdim));
}
Tensor log_sum(const Tensor& x, const Shape& dims, bool keepdim) {
  return ops::log(ops::sum(x, dims, keepdim));
}
Tensor log_sum_exp(const Tensor& x, const Shape& dims, bool keepdim) {
  const Tensor shifted = ops::sub(x, ops::max(x, dims, true));
  return ops::add(log_sum(ops::exp(shifted), dims, keepdim), ops::max(x, dims, keepdim));
}

/// The elements of a dimension in reverse order.
Tensor flip(const Tensor& x, int64_t dim) {
  const int64_t n = x.size(dim);
  return ops::index_select(
      x, dim, ops::sub(ops::full({n}, static_cast<double>(n - 1), DType::i64), ops::arange(0, n)));
}

/// Of equal values the first, or the last when select_last_index is set.
template <Tensor (*kOp)(const Tensor&, int64_t, bool)>
Tensors arg(const Node& node, const Tensors& in) {
  const Tensor& x = in.at(0);
  const int64_t axis = node.i("axis", 0);
  const bool keepdim = node.i("keepdims", 1) != 0;
  if (!node.i("select_last_index", 0)) return {kOp(x, axis, keepdim)};
  const Tensor last = ops::full({}, static_cast<double>(x.size(axis) - 1), DType::i64);
  return {ops::sub(last, kOp(flip(x, axis), axis, keepdim))};
}

/// 1 at the first maximum along the axis, 0 elsewhere.
Tensors hardmax(const Node& node, const Tensors& in) {
  const Tensor& x = in.at(0);
  const int64_t axis = node.i("axis", -1);
  const Tensor hits = ops::one_hot(ops::argmax(x, axis), x.size(axis), x.dtype());
  Shape order;
  for (int i = 0; i + 1 < x.dim(); ++i) order.push_back(i);
  order.insert(wrap_dim(axis, x.dim(), "Hardmax"), x.dim() - 1);
  return {ops::permute(hits, order)};
}

constexpr OpType kOps[] = {
    {"ArgMax", kExact, arg<ops::argmax>},
    {"ArgMin", kExact, arg<ops::argmin>},
    {"Hardmax", kExact, hardmax},
    {"ReduceL1", kSummed, reduce<norm1>},
    {"ReduceL2", kSummed, reduce<norm2>},
    {"ReduceLogSum", kSummed, reduce<log_sum>},
    {"ReduceLogSumExp", kSummed, reduce<log_sum_exp>},
    {"ReduceMax", kExact, reduce<ops::max>},
    {"ReduceMean", kSummed, reduce<ops::mean>},
    {"ReduceMin", kExact, reduce<ops::min>},
    {"ReduceProd", kRounded, reduce<ops::prod>},
    {"ReduceSum", kSummed, reduce<ops::sum>},
    {"ReduceSumSquare", kSummed, reduce<sum_square>},
};

}  // namespace

std::span<const OpType> reduce_ops() { return kOps; }

}  // namespace weft::onnx
