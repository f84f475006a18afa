// Elementwise op types: arithmetic, functions, comparisons, casts.
#include <limits>

#include "kernels/binary/binary.h"
#include "kernels/unary/unary.h"
#include "tests/onnx/ops.h"

namespace weft::onnx {
namespace {

using kernels::BinaryOp;
using kernels::UnaryOp;
using enum Accuracy;

template <Tensor (*kOp)(const Tensor&)>
Tensors unary(const Node&, const Tensors& in) {
  return {kOp(in.at(0))};
}

template <Tensor (*kOp)(const Tensor&, const Tensor&)>
Tensors binary(const Node&, const Tensors& in) {
  return {kOp(in.at(0), in.at(1))};
}

template <Tensor (*kOp)(const Tensor&, const Tensor&)>
Tensors variadic(const Node&, const Tensors& in) {
  Tensor y = in.at(0);
  for (size_t i = 1; i < in.size(); ++i) y = kOp(y, in[i]);
  return {y};
}

/// Functions that kernels have beyond ops::.
template <UnaryOp kOp>
Tensors unary_kernel(const Node& node, const Tensors& in) {
  const Tensor& x = in.at(0);
  const Tensor y = Tensor::empty(x.shape(), kernels::is_test(kOp) ? DType::boolean : x.dtype());
  kernels::unary({.op = kOp, .x = x, .y = y, .alpha = node.f("alpha", 0.01)});
  return {y};
}

Tensor expm1(const Tensor& x) { return unary_kernel<UnaryOp::kExpm1>({}, {x})[0]; }

template <BinaryOp kOp>
Tensor binary_kernel(const Tensor& a, const Tensor& b) {
  const Shape shape = broadcast_shapes(a.shape(), b.shape(), kernels::name(kOp));
  const DType dtype = kernels::is_test(kOp) ? DType::boolean : promote(a.dtype(), b.dtype());
  const Tensor y = Tensor::empty(shape, dtype);
  kernels::binary({.op = kOp, .a = ops::expand(a, shape), .b = ops::expand(b, shape), .y = y});
  return y;
}

Tensor plus(const Tensor& a, const Tensor& b) { return ops::add(a, b); }

// ops::div gives a float for integers, as Python's / does; ONNX truncates.
Tensor divide(const Tensor& a, const Tensor& b) {
  return is_floating(a.dtype()) ? ops::div(a, b) : binary_kernel<BinaryOp::kDiv>(a, b);
}

Tensor positive(const Tensor& x) { return ops::gt(x, constant_like(x, 0)); }

Tensors mean(const Node& node, const Tensors& in) {
  return {variadic<plus>(node, in)[0] / static_cast<double>(in.size())};
}

/// The exponent may be of another type; the result has the base's.
Tensors pow(const Node&, const Tensors& in) {
  return {ops::cast(ops::pow(in.at(0), in.at(1)), in[0].dtype())};
}

Tensors clip(const Node&, const Tensors& in) {
  const Tensor low = optional(in, 1), high = optional(in, 2);
  if (low && high && is_floating(low.dtype())) {
    return {ops::clamp(in.at(0), low.item(), high.item())};
  }
  Tensor y = in.at(0);
  if (low) y = ops::maximum(y, low);
  if (high) y = ops::minimum(y, high);
  return {y};
}

Tensor hard_sigmoid(const Tensor& x, double alpha, double beta) {
  return ops::clamp(x * alpha + beta, 0, 1);
}

/// x for x > 0, else scale (exp(x) - 1).
Tensor exponential_below(const Tensor& x, double scale) {
  return ops::where(positive(x), x, expm1(ops::minimum(x, constant_like(x, 0))) * scale);
}

Tensors elu(const Node& node, const Tensors& in) {
  return {exponential_below(in.at(0), node.f("alpha", 1))};
}
Tensors selu(const Node& node, const Tensors& in) {
  const double alpha = node.f("alpha", 1.67326319217681884765625);
  const double gamma = node.f("gamma", 1.05070102214813232421875);
  return {exponential_below(in.at(0), alpha) * gamma};
}
Tensors celu(const Node& node, const Tensors& in) {
  const double alpha = node.f("alpha", 1);
  return {exponential_below(in.at(0) / alpha, 1) * alpha};
}
Tensors hard_sigmoid_op(const Node& node, const Tensors& in) {
  return {hard_sigmoid(in.at(0), node.f("alpha", 0.2), node.f("beta", 0.5))};
}
Tensors hard_swish(const Node&, const Tensors& in) {
  return {ops::mul(in.at(0), hard_sigmoid(in[0], 1.0 / 6, 0.5))};
}
Tensors prelu(const Node&, const Tensors& in) {
  return {ops::where(positive(in.at(0)), in[0], ops::mul(in[0], in.at(1)))};
}
Tensors thresholded_relu(const Node& node, const Tensors& in) {
  const Tensor& x = in.at(0);
  const Tensor above = ops::gt(x, constant_like(x, node.f("alpha", 1)));
  return {ops::where(above, x, constant_like(x, 0))};
}
Tensors softsign(const Node&, const Tensors& in) {
  return {ops::div(in.at(0), ops::abs(in[0]) + 1.0)};
}
Tensors tan(const Node&, const Tensors& in) {
  return {ops::div(ops::sin(in.at(0)), ops::cos(in[0]))};
}
Tensors shrink(const Node& node, const Tensors& in) {
  const Tensor& x = in.at(0);
  const double lambda = node.f("lambd", 0.5), bias = node.f("bias", 0);
  const Tensor zero = constant_like(x, 0);
  const Tensor above = ops::where(ops::gt(x, constant_like(x, lambda)), x - bias, zero);
  return {ops::where(ops::lt(x, constant_like(x, -lambda)), x + bias, above)};
}

Tensors is_inf(const Node& node, const Tensors& in) {
  const Tensor& x = in.at(0);
  const bool up = node.i("detect_positive", 1), down = node.i("detect_negative", 1);
  if (up && down) return unary_kernel<UnaryOp::kIsInf>(node, in);
  const double infinity = std::numeric_limits<double>::infinity();
  return {ops::eq(x, constant_like(x, up ? infinity : -infinity))};
}

DType dtype_of_attribute(const Node& node, std::string_view name, DType fallback) {
  const Attribute* a = node.find(name);
  return a ? element_type(a->i) : fallback;
}

Tensors cast(const Node& node, const Tensors& in) {
  return {ops::cast(in.at(0), dtype_of_attribute(node, "to", DType::f32))};
}
Tensors cast_like(const Node&, const Tensors& in) {
  return {ops::cast(in.at(0), in.at(1).dtype())};
}
Tensors where(const Node&, const Tensors& in) { return {ops::where(in.at(0), in.at(1), in.at(2))}; }

constexpr OpType kOps[] = {
    {"Abs", kExact, unary<ops::abs>},
    {"Add", kExact, binary<plus>},
    {"And", kExact, binary<ops::logical_and>},
    {"Cast", kExact, cast},
    {"CastLike", kExact, cast_like},
    {"Ceil", kExact, unary<ops::ceil>},
    {"Celu", kSummed, celu},
    {"Clip", kExact, clip},
    {"Cos", kRounded, unary<ops::cos>},
    {"Div", kExact, binary<divide>},
    {"Elu", kSummed, elu},
    {"Equal", kExact, binary<ops::eq>},
    {"Erf", kRounded, unary<ops::erf>},
    {"Exp", kRounded, unary<ops::exp>},
    {"Floor", kExact, unary<ops::floor>},
    {"Greater", kExact, binary<ops::gt>},
    {"GreaterOrEqual", kExact, binary<ops::ge>},
    {"HardSigmoid", kSummed, hard_sigmoid_op},
    {"HardSwish", kSummed, hard_swish},
    {"IsInf", kExact, is_inf},
    {"IsNaN", kExact, unary<ops::is_nan>},
    {"LeakyRelu", kExact, unary_kernel<UnaryOp::kLeakyRelu>},
    {"Less", kExact, binary<ops::lt>},
    {"LessOrEqual", kExact, binary<ops::le>},
    {"Log", kRounded, unary<ops::log>},
    {"Max", kExact, variadic<ops::maximum>},
    {"Mean", kSummed, mean},
    {"Min", kExact, variadic<ops::minimum>},
    {"Mul", kExact, binary<ops::mul>},
    {"Neg", kExact, unary<ops::neg>},
    {"Not", kExact, unary<ops::logical_not>},
    {"Or", kExact, binary<ops::logical_or>},
    {"PRelu", kExact, prelu},
    {"Pow", kRounded, pow},
    {"Reciprocal", kExact, unary<ops::reciprocal>},
    {"Relu", kExact, unary<ops::relu>},
    {"Round", kExact, unary<ops::round>},
    {"Selu", kSummed, selu},
    {"Shrink", kExact, shrink},
    {"Sigmoid", kRounded, unary<ops::sigmoid>},
    {"Sign", kExact, unary<ops::sign>},
    {"Sin", kRounded, unary<ops::sin>},
    {"Softplus", kRounded, unary_kernel<UnaryOp::kSoftplus>},
    {"Softsign", kRounded, softsign},
    {"Sqrt", kExact, unary<ops::sqrt>},
    {"Sub", kExact, binary<ops::sub>},
    {"Sum", kExact, variadic<plus>},
    {"Tan", kRounded, tan},
    {"Tanh", kRounded, unary<ops::tanh>},
    {"ThresholdedRelu", kExact, thresholded_relu},
    {"Where", kExact, where},
    {"Xor", kExact, binary<binary_kernel<BinaryOp::kLogicalXor>>},
};

}  // namespace

std::span<const OpType> elementwise_ops() { return kOps; }

}  // namespace weft::onnx
