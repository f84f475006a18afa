// Every op of autograd/ops.h on empty tensors and on tensors of one element, forward and backward.
// The header is the list: an op that is not tried here fails the test.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <map>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "autograd/testing/declared_ops.h"

namespace weft {
namespace {

using namespace ops;

/// An op as a function of one matrix; what else it takes is made to fit.
using OneTensor = std::function<Tensor(const Tensor&)>;

Tensor like(const Tensor& x, double value = 0.5) { return full(x.shape(), value, DType::f64); }
Tensor row(const Tensor& x, double value = 0.5) { return full({x.size(-1)}, value, DType::f64); }
Tensor weight(const Tensor& x, int64_t out) { return full({out, x.size(-1)}, 0.25, DType::f64); }

/// x with leading dimensions of size 1.
Tensor with_dims(const Tensor& x, int dims) {
  Tensor y = x;
  while (y.dim() < dims) y = unsqueeze(y, 0);
  return y;
}

/// x [N, C] as images of one pixel.
Tensor images(const Tensor& x) { return ops::view(x, {x.size(0), x.size(1), 1, 1}); }

Tensor zero_index(const Shape& shape) { return full(shape, 0, DType::i64); }

const std::map<std::string, OneTensor>& tries() {
  using T = const Tensor&;
  static const std::map<std::string, OneTensor> all = {
      {"full", [](T x) { return full(x.shape(), 1); }},
      {"full_like", [](T x) { return full_like(x, 1); }},
      {"zeros_like", [](T x) { return zeros_like(x); }},
      {"ones", [](T x) { return ones(x.shape()); }},
      {"arange", [](T x) { return arange(0, x.numel()); }},
      {"linspace", [](T x) { return linspace(0, 1, x.numel()); }},
      {"eye", [](T x) { return eye(x.size(0)); }},
      {"one_hot", [](T x) { return one_hot(zero_index(x.shape()), 2); }},
      {"rand", [](T x) { return ops::rand(x.shape()); }},
      {"randn", [](T x) { return randn(x.shape()); }},
      {"add", [](T x) { return add(x, like(x), 2); }},
      {"sub", [](T x) { return sub(row(x), x); }},
      {"mul", [](T x) { return mul(x, x); }},
      {"div", [](T x) { return div(x, row(x)); }},
      {"remainder", [](T x) { return ops::remainder(x, like(x)); }},
      {"floor_divide", [](T x) { return floor_divide(x, row(x)); }},
      {"atan2", [](T x) { return ops::atan2(x, like(x)); }},
      {"masked_fill", [](T x) { return masked_fill(x, is_nan(x), 2); }},
      {"pow", [](T x) { return ops::pow(square(x), like(x)); }},
      {"maximum", [](T x) { return maximum(x, like(x)); }},
      {"minimum", [](T x) { return minimum(x, row(x)); }},
      {"where", [](T x) { return where(gt(x, like(x)), x, like(x)); }},
      {"neg", [](T x) { return neg(x); }},
      {"abs", [](T x) { return ops::abs(x); }},
      {"exp", [](T x) { return ops::exp(x); }},
      {"exp2", [](T x) { return ops::exp2(x); }},
      {"expm1", [](T x) { return ops::expm1(x); }},
      {"log2", [](T x) { return ops::log2(x); }},
      {"log10", [](T x) { return ops::log10(x); }},
      {"log1p", [](T x) { return ops::log1p(x); }},
      {"tan", [](T x) { return ops::tan(x); }},
      {"asin", [](T x) { return ops::asin(x); }},
      {"acos", [](T x) { return ops::acos(x); }},
      {"atan", [](T x) { return ops::atan(x); }},
      {"sinh", [](T x) { return ops::sinh(x); }},
      {"cosh", [](T x) { return ops::cosh(x); }},
      {"asinh", [](T x) { return ops::asinh(x); }},
      {"acosh", [](T x) { return ops::acosh(x + 1.0); }},
      {"atanh", [](T x) { return ops::atanh(x); }},
      {"leaky_relu", [](T x) { return leaky_relu(x); }},
      {"elu", [](T x) { return elu(x); }},
      {"softplus", [](T x) { return softplus(x); }},
      {"hardswish", [](T x) { return hardswish(x); }},
      {"log", [](T x) { return ops::log(square(x)); }},
      {"sqrt", [](T x) { return ops::sqrt(square(x)); }},
      {"rsqrt", [](T x) { return rsqrt(square(x)); }},
      {"reciprocal", [](T x) { return reciprocal(x); }},
      {"square", [](T x) { return square(x); }},
      {"sin", [](T x) { return ops::sin(x); }},
      {"cos", [](T x) { return ops::cos(x); }},
      {"tanh", [](T x) { return ops::tanh(x); }},
      {"sigmoid", [](T x) { return sigmoid(x); }},
      {"erf", [](T x) { return ops::erf(x); }},
      {"relu", [](T x) { return relu(x); }},
      {"silu", [](T x) { return silu(x); }},
      {"gelu", [](T x) { return gelu(x) + gelu(x, Gelu::kTanh); }},
      {"clamp", [](T x) { return clamp(x, -1, 1); }},
      {"eq", [](T x) { return eq(x, row(x)); }},
      {"ne", [](T x) { return ne(x, like(x)); }},
      {"lt", [](T x) { return lt(x, like(x)); }},
      {"le", [](T x) { return le(x, like(x)); }},
      {"gt", [](T x) { return gt(x, like(x)); }},
      {"ge", [](T x) { return ge(x, like(x)); }},
      {"sign", [](T x) { return sign(x); }},
      {"floor", [](T x) { return ops::floor(x); }},
      {"ceil", [](T x) { return ops::ceil(x); }},
      {"round", [](T x) { return ops::round(x); }},
      {"trunc", [](T x) { return ops::trunc(x); }},
      {"isinf", [](T x) { return ops::isinf(x); }},
      {"isfinite", [](T x) { return ops::isfinite(x); }},
      {"is_nan", [](T x) { return is_nan(x); }},
      {"logical_and", [](T x) { return logical_and(is_nan(x), is_nan(x)); }},
      {"logical_or", [](T x) { return logical_or(is_nan(x), is_nan(x)); }},
      {"logical_not", [](T x) { return logical_not(is_nan(x)); }},
      {"add_",
       [](T x) {
         Tensor t = x * 2.0;
         return add_(t, x, 3);
       }},
      {"mul_",
       [](T x) {
         Tensor t = x * 2.0;
         return mul_(t, x);
       }},
      {"fill_",
       [](T x) {
         Tensor t = x * 2.0;
         return fill_(t, 3);
       }},
      {"zero_",
       [](T x) {
         Tensor t = x * 2.0;
         return zero_(t);
       }},
      {"copy_",
       [](T x) {
         Tensor t = like(x);
         return copy_(t, x);
       }},
      {"cast", [](T x) { return cast(x, DType::f32); }},
      {"to",
       [](T x) {
         return to(x, {DeviceType::cpu, 1});
       }},
      {"contiguous", [](T x) { return contiguous(transpose(x, 0, 1)); }},
      {"clone", [](T x) { return clone(x); }},
      {"reshape", [](T x) { return reshape(transpose(x, 0, 1), {x.numel()}); }},
      {"view",
       [](T x) {
         return ops::view(x, {x.numel(), 1});
       }},
      {"flatten", [](T x) { return flatten(x); }},
      {"transpose", [](T x) { return transpose(x, 0, 1); }},
      {"permute",
       [](T x) {
         return permute(with_dims(x, 3), {2, 0, 1});
       }},
      {"expand",
       [](T x) {
         return expand(x, {0, x.size(0), x.size(1)});
       }},
      {"squeeze", [](T x) { return squeeze(x, 0); }},
      {"unsqueeze", [](T x) { return unsqueeze(x, 1); }},
      {"slice", [](T x) { return slice(x, 1, 0, 0, 2); }},
      {"narrow", [](T x) { return narrow(x, 0, x.size(0), 0); }},
      {"select", [](T x) { return select(x, 0, -1); }},
      {"split", [](T x) { return cat(split(x, 1, 1), 1); }},
      {"chunk", [](T x) { return cat(chunk(x, 2, 1), 1); }},
      {"cat",
       [](T x) {
         return cat({x, x}, 1);
       }},
      {"stack",
       [](T x) {
         return stack({x, x}, 0);
       }},
      {"diagonal", [](T x) { return diagonal(x); }},
      {"flip", [](T x) { return flip(x, {0, 1}); }},
      {"roll",
       [](T x) {
         return roll(roll(x, {3}), {1, -1}, {0, 1});
       }},
      {"repeat",
       [](T x) {
         return repeat(x, {2, 1, 3});
       }},
      {"tile", [](T x) { return tile(x, {0}); }},
      {"meshgrid",
       [](T x) {
         return meshgrid({reshape(x, {x.numel()}), row(x)})[0];
       }},
      {"tril", [](T x) { return tril(x); }},
      {"triu", [](T x) { return triu(x, -1); }},
      {"pad",
       [](T x) {
         return pad(x, {1, 0, 2, -1});
       }},
      {"std", [](T x) { return ops::std(x, {1}, 0); }},
      {"norm", [](T x) { return norm(x) + norm(x, 1) + norm(x, 0) + norm(x, 3); }},
      {"logsumexp", [](T x) { return logsumexp(x, {1}); }},
      {"trace", [](T x) { return trace(x); }},
      {"any", [](T x) { return ops::any(x, {0}); }},
      {"all", [](T x) { return ops::all(x); }},
      {"outer",
       [](T x) {
         return outer(reshape(x, {x.numel()}), row(x));
       }},
      {"einsum",
       [](T x) {
         return einsum("ij,kj->ik", {x, x});
       }},
      {"rms_norm", [](T x) { return rms_norm(x, row(x)); }},
      {"group_norm", [](T x) { return group_norm(images(x), 1); }},
      {"instance_norm",
       [](T x) {
         return instance_norm(expand(images(x), {x.size(0), x.size(1), 2, 1}));
       }},
      {"nll_loss", [](T x) { return nll_loss(x, zero_index({x.size(0)})); }},
      {"kl_div", [](T x) { return kl_div(x, like(x)); }},
      {"smooth_l1_loss", [](T x) { return smooth_l1_loss(x, like(x)); }},
      {"cosine_similarity", [](T x) { return cosine_similarity(x, like(x)); }},
      {"conv1d",
       [](T x) {
         return conv1d(ops::view(x, {x.size(0), x.size(1), 1}),
                       full({2, x.size(1), 1}, 1, DType::f64));
       }},
      {"conv_transpose2d",
       [](T x) {
         return conv_transpose2d(images(x), full({x.size(1), 2, 2, 2}, 1, DType::f64),
                                 full({2}, 1, DType::f64));
       }},
      {"adaptive_avg_pool2d", [](T x) { return adaptive_avg_pool2d(images(x), {2, 1}); }},
      {"interpolate",
       [](T x) {
         return interpolate(images(x), {.size = Size2d(3), .mode = Interpolation::kBilinear});
       }},
      {"index",
       [](T x) {
         return index(x, {{}, zero_index({0, 2})});
       }},
      {"index_put",
       [](T x) {
         return index_put(x, {zero_index({0})}, row(x), true);
       }},
      {"nonzero", [](T x) { return nonzero(x); }},
      {"sort", [](T x) { return sort(x, 1).first; }},
      {"argsort", [](T x) { return argsort(x, 0); }},
      {"topk", [](T x) { return topk(x, x.size(1) / 2).first; }},
      {"unique", [](T x) { return unique(x, true, true)[0]; }},
      {"cumsum", [](T x) { return cumsum(x, 1); }},
      {"sum", [](T x) { return sum(x) + sum(sum(x, {0}, true)); }},
      {"mean", [](T x) { return mean(x, {1}); }},
      {"prod", [](T x) { return prod(x, {1}); }},
      {"max", [](T x) { return ops::max(x, {1}); }},
      {"min", [](T x) { return ops::min(x, {0}, true); }},
      {"var", [](T x) { return var(x, {1}, 0); }},
      {"argmax", [](T x) { return argmax(x, 1); }},
      {"argmin", [](T x) { return argmin(x, 0); }},
      {"sum_to",
       [](T x) {
         return sum_to(x, {x.size(0), 1});
       }},
      {"matmul", [](T x) { return matmul(x, transpose(x, 0, 1)); }},
      {"linear", [](T x) { return linear(x, weight(x, 3), full({3}, 1, DType::f64)); }},
      {"linear_gelu", [](T x) { return linear_gelu(x, weight(x, 0)); }},
      {"mlp",
       [](T x) {
         return mlp(x, weight(x, 2), full({2}, 1, DType::f64), full({3, 2}, 1, DType::f64), {});
       }},
      {"softmax", [](T x) { return softmax(x, 1); }},
      {"log_softmax", [](T x) { return log_softmax(x, 0); }},
      {"layer_norm", [](T x) { return layer_norm(x, row(x), row(x)); }},
      {"add_layer_norm",
       [](T x) {
         const auto [s, y] = add_layer_norm(x, like(x), row(x), row(x));
         return s + y;
       }},
      {"batch_norm",
       [](T x) { return batch_norm(x, row(x), row(x), row(x).alias(), row(x).alias(), false); }},
      {"cross_entropy", [](T x) { return cross_entropy(x, zero_index({x.size(0)})); }},
      {"attention",
       [](T x) {
         const Tensor q = with_dims(x, 4);
         return attention(q, q, q);
       }},
      {"self_attention",
       [](T x) {
         return self_attention(with_dims(cat({x, x, x}, 1), 3), 1);
       }},
      {"conv2d",
       [](T x) {
         return conv2d(images(x), full({2, x.size(1), 1, 1}, 1, DType::f64),
                       full({2}, 1, DType::f64));
       }},
      {"max_pool2d",
       [](T x) {
         return max_pool2d(images(x), {.kernel = {1, 1}, .stride = {1, 1}});
       }},
      {"max_pool2d_with_indices",
       [](T x) {
         return max_pool2d_with_indices(images(x), {.kernel = {1, 1}, .stride = {1, 1}}).first;
       }},
      {"avg_pool2d",
       [](T x) {
         return avg_pool2d(images(x), {.kernel = {1, 1}, .stride = {1, 1}});
       }},
      {"embedding", [](T x) { return embedding(x, zero_index({x.size(0)})); }},
      {"index_select", [](T x) { return index_select(x, 1, zero_index({0})); }},
      {"gather", [](T x) { return gather(x, 1, zero_index(x.shape())); }},
      {"scatter_add", [](T x) { return scatter_add(x, 1, zero_index(x.shape()), x); }},
      {"dropout", [](T x) { return dropout(x, 0.5); }},
  };
  return all;
}

/// Shapes in which there is nothing to choose from.
const std::map<std::string, std::vector<Shape>> kRefused = {
    {"max", {{3, 0}, {0, 0}}},           {"min", {{0, 3}, {0, 0}}},
    {"argmax", {{3, 0}, {0, 0}}},        {"argmin", {{0, 3}, {0, 0}}},
    {"select", {{0, 3}, {0, 0}}},        {"cross_entropy", {{3, 0}, {0, 0}}},
    {"instance_norm", {{3, 0}, {0, 0}}}, {"nll_loss", {{3, 0}}},
};

TEST_CASE("every op in ops.h takes empty tensors and tensors of one element") {
  for (const std::string& op : declared_ops()) {
    INFO(op << " is declared in autograd/ops.h");
    CHECK(tries().count(op) > 0);
  }
  for (const auto& [op, function] : tries()) {
    for (const Shape& shape : {Shape{1, 1}, Shape{0, 3}, Shape{3, 0}, Shape{0, 0}}) {
      INFO(op << " of " << to_string(shape));
      manual_seed(1);
      Tensor x = full(shape, 0.75, DType::f64).set_requires_grad(true);
      const auto refused = kRefused.find(op);
      if (refused != kRefused.end() && std::ranges::count(refused->second, shape)) {
        CHECK_THROWS_WITH(function(x), Catch::StartsWith(op + ": "));
        CHECK_THROWS_AS(function(x), Error);
        continue;
      }
      Tensor y;
      REQUIRE_NOTHROW(y = function(x));
      if (!y.requires_grad()) continue;
      REQUIRE_NOTHROW(backward(y, ones(y.shape(), y.dtype())));
      const bool is_cut = op == "fill_" || op == "zero_";
      REQUIRE(x.grad().defined() == !is_cut);
      if (is_cut) continue;
      CHECK(x.grad().shape() == shape);
      for (double g : x.grad().to_vector()) CHECK(std::isfinite(g));
    }
  }
}

TEST_CASE("a slice of nothing with a step has a gradient of zeros") {
  Tensor x = full({3}, 1, DType::f64).set_requires_grad(true);
  backward(sum(slice(x, 0, 0, 0, 2)));
  CHECK(x.grad().to_vector() == std::vector<double>{0, 0, 0});
}

TEST_CASE("a linear layer without inputs gives its bias") {
  Tensor bias = Tensor::from(std::vector<double>{2, 3}, {2}).set_requires_grad(true);
  const Tensor y =
      linear(Tensor::zeros({3, 0}, DType::f64), Tensor::zeros({2, 0}, DType::f64), bias);
  CHECK(y.to_vector() == std::vector<double>{2, 3, 2, 3, 2, 3});
  backward(sum(y));
  CHECK(bias.grad().to_vector() == std::vector<double>{3, 3});
}

TEST_CASE("layer norm of width 0") {
  Tensor x = Tensor::zeros({2, 0}).set_requires_grad(true),
         weight = Tensor::zeros({0}).set_requires_grad(true);
  const Tensor y = layer_norm(x, weight, {});
  CHECK(y.shape() == Shape{2, 0});
  backward(sum(y));
  CHECK(x.grad().shape() == Shape{2, 0});
  CHECK(weight.grad().shape() == Shape{0});
}

}  // namespace
}  // namespace weft
