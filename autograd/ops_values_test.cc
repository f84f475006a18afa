// Ops against values from PyTorch 2.15 in f64, on fixed numbers, and what each says of bad input.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <tuple>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"

namespace weft {
namespace {

using namespace ops;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Quarters from -9/4 to 9/4 in an order without a pattern of its own.
Tensor pattern(const Shape& shape) {
  std::vector<double> values;
  for (int64_t i = 0; i < numel(shape); ++i) {
    values.push_back(static_cast<double>(i * 37 % 19 - 9) / 4);
  }
  return Tensor::from(values, shape);
}
Tensor integers() { return cast(pattern({7}) * 4.0, DType::i64); }
Tensor special() {
  return Tensor::from(std::vector<double>{3, kNan, -0.0, kInf, 0.0, -1, kNan}, {7});
}
Tensor places(const std::vector<int64_t>& values) {
  return Tensor::from(values, {static_cast<int64_t>(values.size())});
}

struct Value {
  const char* name;
  std::function<Tensor()> run;
  Shape shape;
  std::vector<double> expected;
};

const std::vector<Value>& values() {
  static const std::vector<Value> all = {
      {"floor_divide", [] { return floor_divide(pattern({7}), pattern({7}) * 0.0 + 0.75); }, {7}, {-3.0, 3.0, 2.0, 2.0, 2.0, 1.0, 1.0}},
      {"remainder", [] { return ops::remainder(pattern({7}), pattern({7}) * 0.0 + 0.75); }, {7}, {-0.0, 0.0, 0.5, 0.25, 0.0, 0.5, 0.25}},
      {"remainder by a negative", [] { return ops::remainder(pattern({7}), pattern({7}) * 0.0 - 0.75); }, {7}, {-0.0, 0.0, -0.25, -0.5, 0.0, -0.25, -0.5}},
      {"floor_divide of integers", [] { return floor_divide(integers(), full({}, -4, DType::i64)); }, {7}, {2.0, -3.0, -2.0, -2.0, -2.0, -2.0, -1.0}},
      {"remainder of integers", [] { return ops::remainder(integers(), full({}, -4, DType::i64)); }, {7}, {-1.0, -3.0, 0.0, -1.0, -2.0, -3.0, 0.0}},
      {"atan2", [] { return ops::atan2(pattern({7}), pattern({7}) + 1.0); }, {7}, {-2.0778948311872334, 0.6055446636049701, 0.5880026035475675, 0.5667292175235064, 0.5404195002705842, 0.507098504392337, 0.4636476090008061}},
      {"softplus", [] { return softplus(pattern({7}), 2, 1); }, {7}, {0.005523872424296908, 2.25, 2.0, 1.75, 1.5, 1.25, 1.0}},
      {"elu", [] { return elu(pattern({7}), 0.5); }, {7}, {-0.4473003877190678, 2.25, 2.0, 1.75, 1.5, 1.25, 1.0}},
      {"leaky_relu", [] { return leaky_relu(pattern({7}), 0.1); }, {7}, {-0.225, 2.25, 2.0, 1.75, 1.5, 1.25, 1.0}},
      {"hardswish", [] { return hardswish(pattern({7}) * 2.0); }, {7}, {-0.0, 4.5, 4.0, 3.5, 3.0, 2.2916666666666665, 1.6666666666666667}},
      {"masked_fill", [] { return masked_fill(pattern({7}), gt(pattern({7}), pattern({1}) + 2.25), -1); }, {7}, {-2.25, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0}},
      {"linspace", [] { return linspace(-1, 2, 5, DType::f64); }, {5}, {-1.0, -0.25, 0.5, 1.25, 2.0}},
      {"linspace of one", [] { return linspace(3, 7, 1, DType::f64); }, {1}, {3.0}},
      {"norm", [] { return norm(pattern({3, 4}), 2, {1}); }, {3}, {4.14578098794425, 2.318404623873926, 0.6123724356957945}},
      {"norm 3", [] { return norm(pattern({3, 4}), 3, {0}, true); }, {1, 4}, {2.460203180168832, 2.3728049895073324, 2.080083823051904, 1.7963790376632978}},
      {"norm 0", [] { return norm(pattern({3, 4}), 0, {1}); }, {3}, {4.0, 4.0, 3.0}},
      {"norm -inf", [] { return norm(pattern({3, 4}), -kInf, {-1}); }, {3}, {1.75, 0.75, 0.0}},
      {"norm -1", [] { return norm(Tensor::from(std::vector<double>{2, -2, 0, 3, kInf, -kInf}, {3, 2}), -1, {1}); }, {3}, {1.0, 0.0, kInf}},
      {"std", [] { return ops::std(pattern({3, 4}), {1}); }, {3}, {2.1347814095749165, 0.3227486121839514, 0.3227486121839514}},
      {"logsumexp", [] { return logsumexp(pattern({3, 4}), {0}); }, {4}, {1.830308412820332, 2.6576059644443806, 2.4076059644443806, 2.1576059644443806}},
      {"logsumexp of infinities", [] { return logsumexp(Tensor::from(std::vector<double>{-kInf, -kInf, kInf, 0}, {2, 2}), {1}); }, {2}, {-kInf, kInf}},
      {"any", [] { return ops::any(gt(pattern({3, 4}), full({}, 2, DType::f64)), {1}); }, {3}, {1, 0, 0}},
      {"all", [] { return ops::all(gt(pattern({3, 4}), full({}, -2.2, DType::f64)), {1}); }, {3}, {0, 1, 1}},
      {"trace", [] { return trace(pattern({3, 4})); }, {}, {-1.0}},
      {"diagonal", [] { return diagonal(pattern({3, 4}), 1); }, {3}, {2.25, 1.0, -0.25}},
      {"diagonal below", [] { return diagonal(pattern({2, 3, 2}), -1, 1, 2); }, {2, 2}, {2.0, 1.25, 0.5, -0.25}},
      {"diagonal outside", [] { return diagonal(pattern({3, 4}), 9); }, {0}, {}},
      {"flip", [] { return flip(pattern({3, 4}), {0, 1}); }, {3, 4}, {-0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, -2.25}},
      {"roll", [] { return roll(pattern({3, 4}), {1, -6}, {0, 1}); }, {3, 4}, {0.0, -0.25, 0.5, 0.25, 2.0, 1.75, -2.25, 2.25, 1.0, 0.75, 1.5, 1.25}},
      {"roll all", [] { return roll(pattern({3, 4}), {5}); }, {3, 4}, {0.75, 0.5, 0.25, 0.0, -0.25, -2.25, 2.25, 2.0, 1.75, 1.5, 1.25, 1.0}},
      {"repeat", [] { return repeat(pattern({2, 2}), {2, 1, 2}); }, {2, 2, 4}, {-2.25, 2.25, -2.25, 2.25, 2.0, 1.75, 2.0, 1.75, -2.25, 2.25, -2.25, 2.25, 2.0, 1.75, 2.0, 1.75}},
      {"repeat along four dimensions", [] { return repeat(pattern({2}), {2, 2, 2, 2}); }, {2, 2, 2, 4}, {-2.25, 2.25, -2.25, 2.25, -2.25, 2.25, -2.25, 2.25, -2.25, 2.25, -2.25, 2.25, -2.25, 2.25, -2.25, 2.25, -2.25, 2.25, -2.25, 2.25, -2.25, 2.25, -2.25, 2.25, -2.25, 2.25, -2.25, 2.25, -2.25, 2.25, -2.25, 2.25}},
      {"tile", [] { return tile(pattern({2, 2}), {2}); }, {2, 4}, {-2.25, 2.25, -2.25, 2.25, 2.0, 1.75, 2.0, 1.75}},
      {"meshgrid", [] { return meshgrid({pattern({2}), pattern({3})})[1]; }, {2, 3}, {-2.25, 2.25, 2.0, -2.25, 2.25, 2.0}},
      {"meshgrid xy", [] { return meshgrid({pattern({2}), pattern({3})}, Indexing::kXY)[0]; }, {3, 2}, {-2.25, 2.25, -2.25, 2.25, -2.25, 2.25}},
      {"tril", [] { return tril(pattern({3, 4}), -1); }, {3, 4}, {0.0, 0.0, 0.0, 0.0, 1.5, 0.0, 0.0, 0.0, 0.5, 0.25, 0.0, 0.0}},
      {"triu", [] { return triu(pattern({3, 4}), 1); }, {3, 4}, {0.0, 2.25, 2.0, 1.75, 0.0, 0.0, 1.0, 0.75, 0.0, 0.0, 0.0, -0.25}},
      {"pad", [] { return pad(pattern({2, 3}), {1, -1, 0, 1}, Padding::kConstant, 7); }, {3, 3}, {7.0, -2.25, 2.25, 7.0, 1.75, 1.5, 7.0, 7.0, 7.0}},
      {"pad reflect", [] { return pad(pattern({2, 3}), {2, 1}, Padding::kReflect); }, {2, 6}, {2.0, 2.25, -2.25, 2.25, 2.0, 2.25, 1.25, 1.5, 1.75, 1.5, 1.25, 1.5}},
      {"pad replicate", [] { return pad(pattern({1, 2, 3}), {2, 0}, Padding::kReplicate); }, {1, 2, 5}, {-2.25, -2.25, -2.25, 2.25, 2.0, 1.75, 1.75, 1.75, 1.5, 1.25}},
      {"pad circular", [] { return pad(pattern({1, 2, 3}), {2, 3}, Padding::kCircular); }, {1, 2, 8}, {2.25, 2.0, -2.25, 2.25, 2.0, -2.25, 2.25, 2.0, 1.5, 1.25, 1.75, 1.5, 1.25, 1.75, 1.5, 1.25}},
      {"outer", [] { return outer(pattern({2}), pattern({3})); }, {2, 3}, {5.0625, -5.0625, -4.5, -5.0625, 5.0625, 4.5}},
      {"einsum", [] { return einsum("bij,jk", {pattern({2, 2, 3}), pattern({3, 2})}); }, {2, 2, 2}, {12.5625, 1.375, 0.9375, 8.125, 0.0, 4.1875, -0.9375, 0.25}},
      {"einsum ellipsis", [] { return einsum("i...,i...->...", {pattern({2, 3}), pattern({2, 1})}); }, {3}, {9.0, -1.6875, -1.6875}},
      {"einsum diagonal", [] { return einsum("ii->i", {pattern({3, 3})}); }, {3}, {-2.25, 1.5, 0.5}},
      {"einsum three", [] { return einsum("ij,jk,kl->il", {pattern({2, 3}), pattern({3, 2}), pattern({2, 2})}); }, {2, 2}, {-25.515625, 30.671875, 14.140625, 16.328125}},
      {"sort", [] { return sort(special()).first; }, {7}, {-1.0, -0.0, 0.0, 3.0, kInf, kNan, kNan}},
      {"sort descending", [] { return sort(special(), 0, true).first; }, {7}, {kNan, kNan, kInf, 3.0, -0.0, 0.0, -1.0}},
      {"argsort", [] { return argsort(special()); }, {7}, {5.0, 2.0, 4.0, 0.0, 3.0, 1.0, 6.0}},
      {"argsort descending", [] { return argsort(special(), 0, true); }, {7}, {1.0, 6.0, 3.0, 0.0, 2.0, 4.0, 5.0}},
      {"sort rows", [] { return sort(pattern({3, 4}), 0).second; }, {3, 4}, {0.0, 2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0}},
      {"topk", [] { return topk(pattern({3, 4}), 2, 1).first; }, {3, 2}, {2.25, 2.0, 1.5, 1.25, 0.5, 0.25}},
      {"topk smallest", [] { return topk(pattern({3, 4}), 1, 0, false).second; }, {1, 4}, {0.0, 2.0, 2.0, 2.0}},
      {"unique", [] { return unique(Tensor::from(std::vector<int64_t>{3, 1, 2, 1, 3, 3}, {6}), true, true)[0]; }, {3}, {1.0, 2.0, 3.0}},
      {"inverse of unique", [] { return unique(Tensor::from(std::vector<int64_t>{3, 1, 2, 1, 3, 3}, {6}), true, true)[1]; }, {6}, {2.0, 0.0, 1.0, 0.0, 2.0, 2.0}},
      {"counts of unique", [] { return unique(Tensor::from(std::vector<int64_t>{3, 1, 2, 1, 3, 3}, {6}), true, true)[2]; }, {3}, {2.0, 1.0, 3.0}},
      {"unique rows", [] { return unique(Tensor::from(std::vector<int64_t>{2, 1, 2, 0, 2, 1, 2, 5, 2, 1, 2, 0, 0, 7, 0, 0}, {4, 4}), true, true, 0)[0]; }, {3, 4}, {0.0, 7.0, 0.0, 0.0, 2.0, 1.0, 2.0, 0.0, 2.0, 1.0, 2.0, 5.0}},
      {"inverse of unique rows", [] { return unique(Tensor::from(std::vector<int64_t>{2, 1, 2, 0, 2, 1, 2, 5, 2, 1, 2, 0, 0, 7, 0, 0}, {4, 4}), true, true, 0)[1]; }, {4}, {1.0, 2.0, 1.0, 0.0}},
      {"counts of unique rows", [] { return unique(Tensor::from(std::vector<int64_t>{2, 1, 2, 0, 2, 1, 2, 5, 2, 1, 2, 0, 0, 7, 0, 0}, {4, 4}), true, true, 0)[2]; }, {3}, {1.0, 2.0, 1.0}},
      {"unique columns", [] { return unique(Tensor::from(std::vector<int64_t>{2, 1, 2, 0, 2, 1, 2, 5, 2, 1, 2, 0, 0, 7, 0, 0}, {4, 4}), true, true, -1)[0]; }, {4, 3}, {0.0, 1.0, 2.0, 5.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 7.0, 0.0}},
      {"unique matrices", [] { return unique(Tensor::from(std::vector<int64_t>{0, 0, 1, 0, 0, 1, 0, 0}, {2, 2, 2}), false, false, 2)[0]; }, {2, 2, 2}, {0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0}},
      {"inverse of unique columns", [] { return unique(Tensor::from(std::vector<int64_t>{2, 1, 2, 0, 2, 1, 2, 5, 2, 1, 2, 0, 0, 7, 0, 0}, {4, 4}), true, true, -1)[1]; }, {4}, {2.0, 1.0, 2.0, 0.0}},
      {"cumsum", [] { return cumsum(pattern({3, 4}), 1); }, {3, 4}, {-2.25, 0.0, 2.0, 3.75, 1.5, 2.75, 3.75, 4.5, 0.5, 0.75, 0.75, 0.5}},
      {"cumsum of bool", [] { return cumsum(gt(pattern({7}), full({}, 0, DType::f64)), 0); }, {7}, {0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0}},
      {"nonzero", [] { return nonzero(gt(pattern({3, 4}), full({}, 1, DType::f64))); }, {5, 2}, {0.0, 1.0, 0.0, 2.0, 0.0, 3.0, 1.0, 0.0, 1.0, 1.0}},
      {"index", [] { return index(pattern({3, 4}), {places({2, 0, -1}), places({1, 3, 0})}); }, {3}, {0.25, 1.75, 0.5}},
      {"index apart", [] { return index(pattern({2, 2, 3}), {places({1, 0}), {}, places({2, 0})}); }, {2, 2}, {0.5, -0.25, -2.25, 1.75}},
      {"index behind", [] { return index(pattern({2, 2, 3}), {{}, places({1}), places({2, 0})}); }, {2, 2}, {1.25, 1.75, -0.25, 0.25}},
      {"index by a mask", [] { return index(pattern({3, 4}), {gt(pattern({3, 4}), full({}, 1, DType::f64))}); }, {5}, {2.25, 2.0, 1.75, 1.5, 1.25}},
      {"index_put", [] { return index_put(pattern({3, 4}), {places({2, 0})}, pattern({4}) * 10.0); }, {3, 4}, {-22.5, 22.5, 20.0, 17.5, 1.5, 1.25, 1.0, 0.75, -22.5, 22.5, 20.0, 17.5}},
      {"index_put adds", [] { return index_put(pattern({7}), {places({2, 0, 2})}, pattern({3}), true); }, {7}, {0.0, 2.25, 1.75, 1.75, 1.5, 1.25, 1.0}},
      {"rms_norm", [] { return rms_norm(pattern({3, 4}), pattern({4}), 0.1); }, {3, 4}, {2.414309685602851, 2.414309685602851, 1.9076027145504006, 1.4605083283276505, -2.8088450276956167, 2.340704189746347, 1.664500757152958, 1.0923286218816288, -2.5558282541117916, 1.2779141270558958, 0.0, -0.9939332099323634}},
      {"group_norm", [] { return group_norm(pattern({2, 4, 2}), 2, pattern({4}), pattern({4})); }, {2, 4, 2}, {1.6292523544160264, -3.8473392047595403, 3.543084118138675, 3.2388290315178105, 4.683109859463399, 2.894369953154466, 0.9674262909898417, -0.5977211270304745, -5.268498591896324, -3.256166197298775, 1.2438338027012252, -0.7684985918963243, 4.683109859463399, 2.894369953154466, 0.9674262909898417, -0.5977211270304745}},
      {"instance_norm", [] { return instance_norm(pattern({2, 2, 3}), {}, {}, pattern({2}), pattern({2})); }, {2, 2, 3}, {0.9280876278225713, -3.975247569389396, -3.7028400584331758, 5.005345339026498, 2.249999999999999, -0.505345339026499, -5.005345339026498, -2.2499999999999996, 0.5053453390264986, 5.005345339026498, 2.25, -0.5053453390264981}},
      {"conv1d", [] { return conv1d(pattern({1, 2, 6}), pattern({2, 2, 2}), pattern({2}), {.stride = 2, .padding = 1, .dilation = 2}); }, {1, 2, 3}, {4.125, -1.4375, -3.3125, 5.625, 8.75, 6.5}},
      {"conv_transpose2d", [] { return conv_transpose2d(pattern({1, 2, 2, 2}), pattern({2, 1, 2, 2}), pattern({1}), {.stride = 2, .padding = 1, .output_padding = 1}); }, {1, 1, 3, 3}, {-5.0625, 3.5, 2.625, 3.5, -5.0625, 2.625, 2.0, 2.0, 1.375}},
      {"max_pool2d ceil", [] { return max_pool2d(pattern({1, 2, 5, 6}), {.kernel = 2, .stride = 3, .ceil_mode = true}); }, {1, 2, 2, 2}, {2.25, 1.75, 1.25, 2.0, -0.25, 2.25, 0.0, 2.25}},
      {"max_pool2d dilated", [] { return max_pool2d(pattern({1, 2, 5, 6}), {.kernel = {2, 3}, .padding = {0, 1}, .dilation = 2}); }, {1, 2, 2, 2}, {2.25, 2.25, 1.0, 1.0, 1.25, 1.25, 1.25, 2.0}},
      {"max_pool2d_with_indices", [] { return max_pool2d_with_indices(pattern({2, 5, 6}), {.kernel = {2, 3}, .padding = {0, 1}, .dilation = 2}).second; }, {2, 2, 2}, {1.0, 1.0, 25.0, 25.0, 13.0, 13.0, 13.0, 29.0}},
      {"avg_pool2d beyond the image", [] { return avg_pool2d(pattern({1, 1, 2, 2}), {.kernel = 3, .stride = 2, .ceil_mode = true}); }, {1, 1, 1, 1}, {mean(pattern({1, 1, 2, 2})).item()}},
      {"avg_pool2d ceil", [] { return avg_pool2d(pattern({1, 2, 5, 6}), {.kernel = 3, .padding = 1, .ceil_mode = true}); }, {1, 2, 3, 4}, {0.19444444444444445, 0.8333333333333334, 0.5, 0.16666666666666666, -0.4166666666666667, 0.05555555555555555, 0.08333333333333333, -0.08333333333333333, -0.2222222222222222, 0.4722222222222222, 0.6666666666666666, 0.25, -0.5, -0.4722222222222222, 0.25, 0.041666666666666664, -0.1388888888888889, -0.05555555555555555, 0.5, 0.125, -0.3888888888888889, -0.8333333333333334, -0.1111111111111111, 0.125}},
      {"adaptive_avg_pool2d", [] { return adaptive_avg_pool2d(pattern({1, 2, 5, 4}), {2, 3}); }, {1, 2, 2, 3}, {0.5833333333333334, 1.125, 0.875, -0.625, -0.875, -1.125, 1.125, 0.875, 0.625, -0.875, -1.125, -0.5833333333333334}},
      {"interpolate", [] { return interpolate(pattern({1, 2, 5, 4}), {.size = Size2d(2, 3)}); }, {1, 2, 2, 3}, {-2.25, 2.25, 2.0, 0.5, 0.25, 0.0, 2.25, 2.0, 1.75, 0.25, 0.0, -0.25}},
      {"interpolate bilinear", [] { return interpolate(pattern({1, 1, 2, 3}), {.scale_factor = std::array{1.5, 2.0}, .mode = Interpolation::kBilinear}); }, {1, 1, 3, 6}, {-2.25, -1.125, 1.125, 2.1875, 2.0625, 2.0, -0.2500000000000001, 0.2812499999999999, 1.34375, 1.8125, 1.6875, 1.625, 1.75, 1.6875, 1.5625, 1.4375, 1.3125, 1.25}},
      {"interpolate by factors that leave a size or double it", [] { return interpolate(pattern({1, 1, 2, 3}), {.scale_factor = std::array{1.4, 2.3}}); }, {1, 1, 2, 6}, {-2.25, -2.25, 2.25, 2.25, 2.0, 2.0, 1.75, 1.75, 1.5, 1.5, 1.25, 1.25}},
      {"interpolate bilinear by factors that leave the sizes", [] { return interpolate(pattern({1, 1, 2, 3}), {.scale_factor = std::array{1.4, 1.3}, .mode = Interpolation::kBilinear}); }, {1, 1, 2, 3}, {-2.25, 2.25, 2.0, 1.75, 1.5, 1.25}},
      {"interpolate corners", [] { return interpolate(pattern({1, 1, 2, 3}), {.size = Size2d(3, 4), .mode = Interpolation::kBilinear, .align_corners = true}); }, {1, 1, 3, 4}, {-2.25, 0.7499999999999999, 2.1666666666666665, 2.0, -0.25, 1.1666666666666665, 1.7916666666666665, 1.625, 1.75, 1.5833333333333335, 1.4166666666666667, 1.25}},
      {"nll_loss", [] { return nll_loss(pattern({3, 4}), places({1, -100, 2})); }, {}, {-1.125}},
      {"nll_loss weighted", [] { return nll_loss(pattern({3, 4}), places({1, 0, 2}), {.weight = pattern({4}) + 3.0, .ignore_index = 0}); }, {}, {-1.1524390243902438}},
      {"kl_div", [] { return kl_div(pattern({3, 4}), ops::abs(pattern({3, 4})), LossReduction::kBatchMean); }, {}, {-2.347015753631128}},
      {"kl_div log", [] { return kl_div(pattern({3, 4}), pattern({1, 4}), LossReduction::kSum, true); }, {}, {67.2090888742326}},
      {"smooth_l1_loss", [] { return smooth_l1_loss(pattern({7}), pattern({7}) * 0.5, LossReduction::kNone, 0.4); }, {7}, {0.925, 0.925, 0.8, 0.675, 0.55, 0.425, 0.3}},
      {"cosine_similarity", [] { return cosine_similarity(pattern({3, 4}), pattern({1, 4}) + 1.0); }, {3}, {0.9429140723896728, 0.5838515275928318, -0.15244318679334118}},
      {"attention", [] { return attention(pattern({1, 2, 2, 2}), pattern({1, 1, 3, 2}), pattern({1, 1, 3, 2}), {.mask = gt(Tensor::from(std::vector<double>{1, 0, 1, 0, 0, 0}, {2, 3}), full({}, 0, DType::f64))}); }, {1, 2, 2, 2}, {-2.2480422708637087, 2.2494779388969888, 0.0, 0.0, 1.3373536989685553, 1.2933723469417184, 0.0, 0.0}},
      {"attention added mask", [] { return attention(pattern({1, 2, 2, 2}), pattern({1, 1, 3, 2}), pattern({1, 1, 3, 2}), {.mask = Tensor::from(std::vector<double>{-kInf, 0.5, -1.25, -kInf, -kInf, -kInf}, {2, 3})}); }, {1, 2, 2, 2}, {1.9259764009841556, 1.6759764009841553, 0.0, 0.0, 1.969164065832241, 1.719164065832241, 0.0, 0.0}},
      {"attention with a mask's gradient", [] { return attention(pattern({1, 2, 2, 2}), pattern({1, 1, 3, 2}), pattern({1, 1, 3, 2}), {.mask = Tensor(Tensor::from(std::vector<double>{-kInf, 0.5, -1.25, -kInf, -kInf, -kInf}, {2, 3})).set_requires_grad(true)}); }, {1, 2, 2, 2}, {1.9259764009841556, 1.6759764009841553, 0.0, 0.0, 1.969164065832241, 1.719164065832241, 0.0, 0.0}},
  };
  return all;
}

TEST_CASE("values are PyTorch's") {
  for (const Value& value : values()) {
    INFO(value.name);
    Tensor y;
    REQUIRE_NOTHROW(y = value.run());
    CHECK(y.shape() == value.shape);
    const std::vector<double> got = y.to_vector();
    REQUIRE(got.size() == value.expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const double expected = value.expected[i];
      INFO("element " << i << ": " << got[i] << ", expected " << expected);
      const bool is_same = got[i] == expected || (std::isnan(got[i]) && std::isnan(expected));
      // The two add in different orders.
      CHECK((is_same || std::abs(got[i] - expected) <= 1e-14 * (1 + std::abs(expected))));
    }
  }
}

TEST_CASE("dtypes of results") {
  const Tensor whole = integers(), half = cast(pattern({2, 3}), DType::bf16);
  CHECK(cumsum(whole, 0).dtype() == DType::i64);
  CHECK(cumsum(half, 0).dtype() == DType::bf16);
  CHECK(norm(half).dtype() == DType::bf16);
  CHECK(ops::atan2(whole, whole).dtype() == DType::f32);
  CHECK(floor_divide(whole, whole + 10.0).dtype() == DType::f32);
  CHECK(ops::remainder(whole, full({}, 3, DType::i32)).dtype() == DType::i64);
  CHECK(masked_fill(whole, gt(whole, whole), 1).dtype() == DType::i64);
  CHECK(tril(cast(half, DType::i32)).dtype() == DType::i32);
  CHECK(cosine_similarity(half, half).dtype() == DType::bf16);
  CHECK(einsum("i,i", {whole, whole}).dtype() == DType::i64);
  for (const auto& [sorted, order] : {sort(half), topk(half, 1)}) {
    CHECK(sorted.dtype() == DType::bf16);
    CHECK(order.dtype() == DType::i64);
  }
  const Tensor clamped = clamp(places({-5, 16777217, 20000000}), 0, 18000000);
  CHECK(clamped.dtype() == DType::i64);
  CHECK(clamped.to_vector() == std::vector<double>{0, 16777217, 18000000});
  CHECK(clamp(places({-5, 16777217}), 0, kInf).to_vector() == std::vector<double>{0, 16777217});
  CHECK(clamp(cast(whole, DType::i32), -2, 2).dtype() == DType::i32);
  CHECK(clamp(full({1}, 7, DType::u8), 300, kInf).to_vector() == std::vector<double>{255});
  CHECK(clamp(whole, 0, 0.5).dtype() == DType::f32);
  CHECK(ops::any(whole).dtype() == DType::boolean);
  CHECK(isinf(whole).to_vector() == std::vector<double>(7, 0));
}

TEST_CASE("numbers beside 16 bits enter the arithmetic as they are") {
  using Beside = Tensor (*)(const Tensor&);
  const Beside functions[] = {
      [](const Tensor& x) { return x * 1e-8; },    [](const Tensor& x) { return 0.1 + x; },
      [](const Tensor& x) { return x - 1.7; },     [](const Tensor& x) { return 1e5 - x; },
      [](const Tensor& x) { return x / 70000.0; }, [](const Tensor& x) { return 1e5 / x; }};
  for (DType dtype : {DType::f16, DType::bf16}) {
    for (const Shape& shape : {Shape{5}, Shape{}}) {
      for (const Beside f : functions) {
        Tensor x = cast(full(shape, 1234, dtype), dtype), wide = cast(x, DType::f32);
        x.set_requires_grad(true), wide.set_requires_grad(true);
        const Tensor y = f(x), expected = f(wide);
        CHECK(y.dtype() == dtype);
        CHECK(y.to_vector() == cast(expected, dtype).to_vector());
        const Tensor dy = full(shape, 3000, dtype);
        backward(y, dy), backward(expected, dy);
        CHECK(x.grad().dtype() == dtype);
        CHECK(x.grad().to_vector()[0] ==
              Approx(wide.grad().to_vector()[0]).epsilon(4 * unit_roundoff(dtype)).margin(1e-7));
      }
    }
  }
  // 0.1 is 0.0999756 in f16.
  const Tensor x = Tensor::full({3}, 1000, DType::f16), tenth = Tensor::full({}, 0.1);
  CHECK(ops::pow(x, tenth, DType::f16).to_vector()[0] == Approx(1.9952623).epsilon(5e-4));
  CHECK(ops::remainder(x, tenth, DType::f16).to_vector()[0] < 0.1);
  CHECK(ops::floor_divide(x, tenth, DType::f16).to_vector()[0] == 10000);
  Tensor y = clone(x);
  CHECK(mul_(y, Tensor::full({}, 1e-8)).to_vector()[0] == Approx(1e-5).epsilon(2e-2));
  CHECK(eq(cast(tenth, DType::f16), Tensor::full({}, 0.1, DType::f16)).item() == 1);
}

TEST_CASE("narrow norms and sums of exponentials are summed in f32") {
  // 300^2 is more than f16 holds.
  CHECK(norm(Tensor::full({4}, 300, DType::f16)).item() == 600);
  constexpr int64_t kMany = 70000;  // and so is this
  const Tensor equals = Tensor::full({kMany}, 1, DType::f16).set_requires_grad(true);
  const Tensor y = logsumexp(equals);
  CHECK(y.dtype() == DType::f16);
  CHECK(y.item() == Approx(1 + std::log(kMany)).epsilon(1e-3));
  backward(y);
  CHECK(equals.grad().to_vector()[kMany - 1] == Approx(1.0 / kMany).epsilon(1e-2));
}

TEST_CASE("norms and variances are there where sums of squares are beyond f32 or below it") {
  Tensor x = Tensor::from(std::vector<float>{3e30F, -3e30F, 3e30F, -3e30F}, {4});
  x.set_requires_grad(true);
  const Tensor y = norm(x);
  CHECK(y.dtype() == DType::f32);
  CHECK(y.item() == Approx(6e30));
  backward(y);
  CHECK(x.grad().to_vector()[1] == Approx(-0.5));
  const Tensor z = Tensor::from(std::vector<float>{1e19F, -1e19F, 1e19F, -1e19F}, {4});
  CHECK(var(z, {0}, 0).item() == Approx(1e38));
  for (double size : {3e30, 1e-23}) {
    Tensor t = Tensor::from(std::vector<double>{size, 3 * size, 2 * size, -5 * size}, {4});
    t = cast(t, DType::f32).set_requires_grad(true);
    const Tensor deviation = ops::std(t);
    CHECK(deviation.item() == Approx(3.5940 * size).epsilon(1e-4));
    backward(deviation);
    CHECK(t.grad().to_vector()[3] == Approx(-0.4869).epsilon(1e-3));
    CHECK(norm(t).item() == Approx(std::sqrt(39) * size));
  }
}

TEST_CASE("cosine similarity is there where the product of the lengths is beyond f32 or below it") {
  for (double size : {3e30, 1e-23}) {
    Tensor a = Tensor::from(std::vector<double>{size, 3 * size, 2 * size, -5 * size}, {1, 4});
    a = cast(a, DType::f32).set_requires_grad(true);
    const Tensor b = Tensor::from(std::vector<double>{2 * size, size, 0, -size}, {1, 4});
    const Tensor y = cosine_similarity(a, cast(b, DType::f32), 1, 1e-30);
    CHECK(y.item() == Approx(10 / std::sqrt(39 * 6)));
    backward(sum(y));
    CHECK(a.grad().to_vector()[3] * size == Approx(0.018439).epsilon(1e-3));
  }
}

TEST_CASE("gradients where a root has none are 0") {
  for (auto* f : {+[](const Tensor& x) { return norm(x, 2, {1}); },
                  +[](const Tensor& x) { return ops::std(x, {1}); }}) {
    Tensor x = Tensor::zeros({2, 3}, DType::f64).set_requires_grad(true);
    backward(sum(f(x)));
    CHECK(x.grad().to_vector() == std::vector<double>(6, 0));
  }
}

TEST_CASE("atan2 has the gradient 0 where it has no angle") {
  Tensor a = Tensor::from(std::vector<double>{0, 1}, {2}).set_requires_grad(true);
  Tensor b = Tensor::from(std::vector<double>{0, 1}, {2}).set_requires_grad(true);
  backward(sum(ops::atan2(a, b)));
  CHECK(a.grad().to_vector() == std::vector<double>{0, 0.5});
  CHECK(b.grad().to_vector() == std::vector<double>{0, -0.5});
}

TEST_CASE("norms whose slope at 0 is infinite have the gradient 0 there") {
  for (const auto& [p, norm_of, slope] : {std::tuple{0.5, 4.0, 1.0}, {-1.0, 0.0, 0.0}}) {
    Tensor x = Tensor::from(std::vector<double>{0, 4, 0}, {3}).set_requires_grad(true);
    const Tensor y = norm(x, p);
    CHECK(y.item() == norm_of);
    backward(y);
    CHECK(x.grad().to_vector() == std::vector<double>{0, slope, 0});
  }
}

TEST_CASE("what maximum does not take has no gradient, however large that of the other is") {
  Tensor a = Tensor::from(std::vector<double>{3, 2, kNan, 1}, {4}).set_requires_grad(true);
  Tensor b = Tensor::from(std::vector<double>{1, 2, 1, kNan}, {4}).set_requires_grad(true);
  const Tensor dy = Tensor::from(std::vector<double>{kInf, 6, 5, 4}, {4});
  backward(maximum(a, b), dy);
  CHECK(a.grad().to_vector() == std::vector<double>{kInf, 3, 5, 4});
  CHECK(b.grad().to_vector() == std::vector<double>{0, 3, 5, 4});
  backward(minimum(b, a), dy);
  CHECK(a.grad().to_vector() == std::vector<double>{kInf, 6, 10, 8});
  CHECK(b.grad().to_vector() == std::vector<double>{kInf, 6, 10, 8});
}

TEST_CASE("slopes at the corners of clamp and hardswish are PyTorch's") {
  const std::vector<double> places = {-3, 3, -2.5, 2.5, kNan, kInf, -kInf};
  const auto slopes = [&](auto&& f) {
    Tensor x = Tensor::from(places, {7}).set_requires_grad(true);
    backward(sum(f(x)));
    return x.grad().to_vector();
  };
  using Slopes = std::vector<double>;
  CHECK(slopes([](const Tensor& x) { return clamp(x, -3, 3); }) == Slopes{0, 0, 1, 1, 0, 0, 0});
  CHECK(slopes([](const Tensor& x) { return clamp(x, 3, kInf); }) == Slopes{0, 0, 0, 0, 0, 1, 0});
  CHECK(slopes([](const Tensor& x) { return clamp(x, -kInf, 3); }) == Slopes{1, 0, 1, 1, 0, 0, 1});
  const Slopes hard = slopes([](const Tensor& x) { return hardswish(x); });
  CHECK(hard[0] == 0);
  CHECK(hard[1] == 1);
  CHECK(hard[3] == Approx(2.5 / 3 + 0.5));
}

TEST_CASE("an exponent of integers has a gradient") {
  Tensor x = Tensor::from(std::vector<double>{0.5, 2, 1}, {3}).set_requires_grad(true);
  backward(sum(ops::pow(places({4, 3, 0}), x)));
  const std::vector<double> expected = {2 * std::log(4), 9 * std::log(3), 0};
  for (int i = 0; i < 3; ++i) CHECK(x.grad().to_vector()[i] == Approx(expected[i]));
}

TEST_CASE("instance_norm moves its running statistics by the means over the batch") {
  Tensor mean = Tensor::zeros({1}, DType::f64), var = Tensor::full({1}, 1, DType::f64);
  const Tensor x = Tensor::from(std::vector<double>{1, 3, 4, 8}, {2, 1, 2});
  instance_norm(x, mean, var, {}, {}, true, 0.5);
  CHECK(mean.item() == 2);               // (0 + (2 + 6) / 2) / 2
  CHECK(var.item() == 0.5 * (1 + 5.0));  // (1 + (2 + 8) / 2) / 2
  const Tensor y = instance_norm(x, mean, var, {}, {}, false, 0.5, 0);
  CHECK(y.to_vector()[1] == Approx((3 - 2) / std::sqrt(3.0)));
  for (const Shape& empty : {Shape{0, 1, 2}, Shape{2, 1, 0}}) {
    instance_norm(Tensor::zeros(empty, DType::f64), mean, var, {}, {}, true, 0.5);
    CHECK(mean.item() == 2);
    CHECK(var.item() == 3);
  }
}

TEST_CASE("instance_norm's running statistics of f16 are as f32 has them") {
  Tensor mean = Tensor::zeros({1}), var = Tensor::zeros({1});
  // Their mean, 2049, lies between two numbers of f16; the variance of the others is above all.
  const auto of_f16 = [&](const std::vector<double>& x) {
    instance_norm(cast(Tensor::from(x, {1, 1, 2}), DType::f16), mean, var, {}, {}, true, 1);
  };
  of_f16({2048, 2050});
  CHECK(mean.item() == 2049);
  CHECK(var.item() == 2);
  of_f16({-1024, 1024});
  CHECK(mean.item() == 0);
  CHECK(var.item() == 2 * 1024 * 1024);
  // Of bf16 themselves they move in f32: 1 - 0.4981 would be 1/2, and 1.5 times it 0.75.
  Tensor narrow_mean = Tensor::full({1}, 1.5, DType::bf16);
  instance_norm(Tensor::from(std::vector<float>{-1, 1}, {1, 1, 2}), narrow_mean, {}, {}, {}, true,
                0.4981);
  CHECK(narrow_mean.item() == 0.75390625);
}

struct Refusal {
  std::function<void()> run;
  const char* message;
};

TEST_CASE("what is longer than a block") {
  const int64_t n = (1 << 16) + 5;
  for (DType dtype : {DType::f32, DType::bf16, DType::i32}) {
    CHECK(arange(-3, n, dtype).to_vector() == cast(arange(-3, n), dtype).to_vector());
  }
  CHECK(linspace(-1, 2, n).to_vector() ==
        cast(linspace(-1, 2, n, DType::f64), DType::f32).to_vector());
  const std::vector<double> set = {0, 4095, 4096, 40000, static_cast<double>(n - 1)};
  Tensor mask = Tensor::zeros({2, n}, DType::boolean);
  for (double place : set) {
    Tensor element = narrow(mask, 1, static_cast<int64_t>(place), 1);
    fill_(element, 1);
  }
  const Tensor found = nonzero(mask);
  CHECK(select(found, 1, 0).to_vector() == std::vector<double>{0, 0, 0, 0, 0, 1, 1, 1, 1, 1});
  CHECK(select(narrow(found, 0, 5, 5), 1, 1).to_vector() == set);
}

TEST_CASE("gradients in one pass over many elements are those of few") {
  const Tensor rows = Tensor::from(
      std::vector<double>{1, 2, -3, 4, 5, 0, -6, 7, 0, 8, -0.0, 9, kInf, 0, -2, 3, kNan, 1, 2, 3},
      {5, 4});
  const Tensor row = Tensor::from(std::vector<double>{2, 0, -3, kNan}, {4});
  using Function = Tensor (*)(const Tensor&, const Tensor&);
  const std::pair<const char*, Function> kFunctions[] = {
      {"prod", [](const Tensor& x, const Tensor&) { return prod(x, {1}); }},
      {"max", [](const Tensor& x, const Tensor&) { return ops::max(x, {1}); }},
      {"var", [](const Tensor& x, const Tensor&) { return var(x, {1}); }},
      {"clamp", [](const Tensor& x, const Tensor&) { return clamp(x, -2, 3); }},
      {"maximum", [](const Tensor& x, const Tensor& y) { return maximum(x, y); }},
      {"minimum", [](const Tensor& x, const Tensor& y) { return minimum(y, x); }},
      {"atan2", [](const Tensor& x, const Tensor& y) { return ops::atan2(x, y); }},
      {"pow", [](const Tensor& x, const Tensor& y) { return ops::pow(x, y); }},
      {"exponent of pow", [](const Tensor& x, const Tensor& y) { return ops::pow(y, x); }}};
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [name, function] : kFunctions) {
      INFO(name << " of " << weft::name(dtype));
      const auto gradient = [&, f = function](Tensor x) {
        x.set_requires_grad(true);
        const Tensor y = f(x, cast(row, dtype));
        backward(y, full_like(y, 3));
        return cast(narrow(x.grad(), 0, 0, 5), DType::f32);
      };
      const Tensor few = gradient(cast(rows, dtype));
      const Tensor many = gradient(cast(repeat(rows, {1000, 1}), dtype));
      CHECK(std::memcmp(few.raw(), many.raw(), few.nbytes()) == 0);
    }
  }
}

TEST_CASE("matrices of a batch that are read backwards or repeated") {
  manual_seed(5);
  const Tensor base = ops::randn({3, 40, 40}), a = ops::randn({2, 3, 40, 40});
  const auto shown = [&](const Shape& shape, const Strides& strides, int64_t offset) {
    return Tensor::view_of(base.storage(), shape, strides, offset, DType::f32);
  };
  const Tensor backwards = shown({3, 40, 40}, {-1600, 40, 1}, 3200);
  CHECK(ops::matmul(a, backwards).to_vector() == ops::matmul(a, ops::clone(backwards)).to_vector());
  // The first and the last coincide, those between do not.
  const Tensor there_and_back = shown({2, 2, 40, 40}, {1600, -1600, 40, 1}, 1600);
  const Tensor b = ops::randn({2, 2, 40, 40});
  CHECK(ops::matmul(there_and_back, b).to_vector() ==
        ops::matmul(ops::clone(there_and_back), b).to_vector());
  CHECK(ops::matmul(b, there_and_back).to_vector() ==
        ops::matmul(b, ops::clone(there_and_back)).to_vector());
}

TEST_CASE("means, deviations and shares of f16 do not leave its range on the way") {
  const auto leaf = [](const Tensor& x) {
    Tensor narrow = ops::cast(x, DType::f16);
    return narrow.set_requires_grad(true);
  };
  // 1 / n is 0 in f16, and so is the reciprocal of a count of ties.
  constexpr int64_t kMany = 1 << 25;
  const Tensor x = leaf(ops::full({kMany}, 1));
  backward(ops::mean(x), Tensor::full({}, 4096, DType::f16));
  CHECK(cast(x.grad(), DType::f32).data<float>()[0] == Approx(4096.0 / kMany).epsilon(1e-2));
  const Tensor ties = leaf(ops::full({100000}, 1));
  backward(ops::max(ties), Tensor::full({}, 1024, DType::f16));
  CHECK(ties.grad().to_vector()[7] == Approx(1024.0 / 100000).epsilon(1e-3));
  const Tensor wide = leaf(Tensor::from(std::vector<float>{300, -300}, {2}));
  const Tensor deviation = ops::std(wide);
  CHECK(deviation.dtype() == DType::f16);
  CHECK(deviation.item() == Approx(424.26).epsilon(1e-3));
  backward(deviation);
  CHECK(wide.grad().to_vector()[0] == Approx(0.7071).epsilon(1e-3));
  // Their mean is none of bf16: rounded it would be one of the two, and its gradient 0.
  Tensor close = cast(Tensor::from(std::vector<float>{128, 129}, {2}), DType::bf16);
  backward(ops::var(close.set_requires_grad(true)));
  CHECK(close.grad().to_vector() == std::vector<double>{-1, 1});
}

TEST_CASE("a graph of f16's gradients does not leave its range on the way") {
  const auto leaf = [](const std::vector<double>& values) {
    Tensor x = cast(Tensor::from(values, {1, 4}), DType::f16);
    return x.set_requires_grad(true);
  };
  const Tensor dy = cast(Tensor::from(std::vector<double>{1, -2, 0.5, 3}, {1, 4}), DType::f16);
  const std::function<Tensor(const Tensor&)> functions[] = {
      [](const Tensor& x) { return gelu(x); },
      [](const Tensor& x) { return gelu(x, Gelu::kTanh); },
      [](const Tensor& x) { return silu(x); },
      [w = view(dy, {4})](const Tensor& x) { return layer_norm(x, w, {}); },
  };
  for (const auto& f : functions) {
    const Tensor x = leaf({300, -300, 1, 700});  // 300^2 is more than f16 holds
    const Tensor plain = grad({f(x)}, {x}, {dy})[0];
    const Tensor graph = grad({f(x)}, {x}, {dy}, {.create_graph = true})[0];
    CHECK(graph.dtype() == DType::f16);
    for (int i = 0; i < 4; ++i) {
      CHECK(graph.to_vector()[i] == Approx(plain.to_vector()[i]).epsilon(4e-3).margin(1e-5));
    }
  }
  // Of those without a kernel the only gradient is that of the formula.
  const Tensor x = leaf({300, -300, 1, 700});
  for (auto* f :
       {+[](const Tensor& t) { return atan(t); },
        +[](const Tensor& t) { return ops::atan2(t, Tensor::full({}, 1, DType::f16)); }}) {
    CHECK(grad({f(x)}, {x}, {full_like(x, 1)})[0].to_vector()[0] ==
          Approx(1 / 90001.0).epsilon(5e-3));
  }
}

TEST_CASE("a divisor's gradient is there where the dividend's is beyond the dtype's range") {
  const auto gradient = [](double x, double y, double dy, DType dtype) {
    const Tensor a = Tensor::full({2}, x, dtype);
    const Tensor b = Tensor::full({2}, y, dtype).set_requires_grad(true);
    return grad({div(a, b)}, {b}, {full_like(a, dy)})[0].to_vector()[1];
  };
  CHECK(gradient(0x1p-16, 0x1p-10, 1024, DType::f16) == -0x1p14);
  CHECK(gradient(0x1p-110, 0x1p-60, 0x1p80, DType::f32) == -0x1p90);
}

TEST_CASE(
    "adaptive_avg_pool2d of a NaN and of an infinity is odd where its windows have them alone") {
  for (DType dtype : {DType::f32, DType::f16}) {
    const Tensor x = ops::full({1, 1, 5, 7}, 2, dtype);
    Tensor pixel = ops::select(ops::select(x, 2, 1), 2, 2),
           last = ops::select(view(x, {35}), 0, 34);
    fill_(pixel, kNan), fill_(last, kInf);
    const std::vector<double> y = adaptive_avg_pool2d(x, {2, 3}).to_vector();
    CHECK(std::isnan(y[0]));
    CHECK(std::isnan(y[1]));
    CHECK(std::vector<double>(y.begin() + 2, y.end()) == std::vector<double>{2, 2, 2, kInf});
  }
}

TEST_CASE("queries that finite numbers hide every key from have PyTorch's gradients") {
  // Its math path's, which the op takes where the mask has a gradient, too. Numbers in f32 beside
  // which a part of the score is left are subtracted exactly, as in f64.
  const auto gradients = [](const Tensor& mask, bool causal, bool composed, DType dtype) {
    Tensors leaves;
    for (int i = 0; i < 3; ++i) {
      const Tensor x = view(narrow(pattern({42}), 0, 3 * i, 36), {1, 2, 6, 3});
      leaves.push_back(clone(cast(x, dtype)).set_requires_grad(true));
    }
    Tensor added = clone(cast(mask, dtype));
    added.set_requires_grad(composed);
    const Tensor y = attention(leaves[0], leaves[1], leaves[2], {.causal = causal, .mask = added});
    Tensors found = grad({y}, leaves, {cast(view(pattern({36}), y.shape()), dtype)});
    found.push_back(y);
    return found;
  };
  for (const auto& [number, dtype] :
       {std::pair{-1e9, DType::f32}, {-3e38, DType::f32}, {-1e6, DType::f64}, {-6e4, DType::f64}}) {
    // Row 1 is hidden whole, row 2 where it is not causal, twice in one place; row 3 is -inf.
    Tensor mask = Tensor::zeros({6, 6}, DType::f64);
    for (int64_t row : {1, 2, 3}) {
      Tensor hidden = narrow(select(mask, 0, row), 0, 0, row == 2 ? 3 : 6);
      fill_(hidden, row == 3 ? -kInf : number);
    }
    Tensor twice = select(select(mask, 0, 1), 0, 1);
    fill_(twice, std::max(2 * number, -3.4e38));
    for (bool causal : {false, true}) {
      INFO(number << (causal ? " causal" : ""));
      const Tensors found = gradients(mask, causal, false, DType::f32);
      const Tensors expected = gradients(mask, causal, true, dtype);
      for (size_t i = 0; i < found.size(); ++i) {
        // Of keys that are alike lse is kept to 1e-3.
        const double most = dtype == DType::f32 ? 1e-3 : 1e-4;
        CHECK(ops::max(ops::abs(sub(found[i], cast(expected[i], DType::f32)))).item() < most);
      }
    }
  }
}

TEST_CASE("softplus is x itself where beta x leaves the dtype's range") {
  Tensor x = Tensor::full({2}, 10000, DType::f16).set_requires_grad(true);
  const Tensor y = softplus(x, 10);
  CHECK(y.to_vector() == x.to_vector());
  backward(sum(y));
  CHECK(x.grad().to_vector() == std::vector<double>{1, 1});
}

TEST_CASE("smooth_l1_loss of f16 does not leave its range on the way") {
  const Tensor x = Tensor::full({2}, 400, DType::f16).set_requires_grad(true);
  const Tensor loss =
      smooth_l1_loss(x, Tensor::full({2}, -400, DType::f16), LossReduction::kNone, 1000);
  CHECK(loss.to_vector()[1] == Approx(320).epsilon(1e-3));
  backward(sum(loss));
  CHECK(x.grad().to_vector()[1] == Approx(0.8).epsilon(1e-3));
}

TEST_CASE("rms_norm's own eps is f32's for 16 bits, too") {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Tensor y = rms_norm(Tensor::full({1, 4}, 0.01, dtype));
    CHECK(y.to_vector()[0] == Approx(1).epsilon(2 * unit_roundoff(dtype) + 1e-3));
  }
}

TEST_CASE("nll_loss of f16 counts labels and adds weights beyond its range") {
  constexpr int64_t kMany = 70000;
  Tensor x = Tensor::full({kMany, 2}, -0.5, DType::f16).set_requires_grad(true);
  const Tensor labels = Tensor::zeros({kMany}, DType::i64);
  labels.data<int64_t>()[0] = -100;
  const Tensor loss = nll_loss(x, labels);
  CHECK(loss.dtype() == DType::f16);
  CHECK(loss.item() == 0.5);
  backward(loss);
  CHECK(x.grad().to_vector()[2] == Approx(-1.0 / (kMany - 1)).epsilon(1e-2));
  CHECK(nll_loss(x, labels, {.weight = Tensor::full({2}, 3)}).item() == 0.5);
  CHECK(nll_loss(x, labels, {.reduction = LossReduction::kNone}).dtype() == DType::f16);
}

TEST_CASE("bad input is named") {
  const Tensor x = Tensor::zeros({2, 3}), image = Tensor::zeros({1, 2, 4, 4});
  const Tensor i = Tensor::zeros({2}, DType::i64), mask = gt(x, x);
  const auto wide = [](const Shape& shape) { return Tensor::zeros(shape, DType::f64); };
  const std::vector<Refusal> refusals = {
      {[&] { remainder(i, i); }, "remainder: integer division of 0 by zero"},
      {[&] { floor_divide(i, i); }, "floor_divide: integer division of 0 by zero"},
      {[&] { sub(mask, mask); },
       "sub: bool [2, 3] on cpu and bool [2, 3] on cpu are masks: ne() tells where they differ"},
      {[&] {
         Tensor target = clone(mask);
         add_(target, full({}, 1, DType::i64));
       },
       "add_: the target, bool [2, 3] on cpu, is a mask, and cannot hold numbers such as those"},
      {[&] { masked_fill(x, x, 1); }, "masked_fill: the mask must be bool, got f32 [2, 3] on cpu"},
      {[&] { linspace(0, 1, -1); }, "linspace: the number of steps must not be negative, got -1"},
      {[&] { diagonal(x, 0, 1, -1); },
       "diagonal: expected two dimensions of f32 [2, 3] on cpu, got 1 twice"},
      {[&] {
         flip(x, {0, -2});
       },
       "flip: dimension 0 is named twice in [0, -2]"},
      {[&] {
         roll(x, {1, 2});
       },
       "roll: expected one shift without dimensions, got [1, 2]"},
      {[&] { repeat(x, {2}); },
       "repeat: [2] are fewer numbers than the dimensions of f32 [2, 3] on cpu"},
      {[&] { tril(i); }, "tril: expected matrices [..., M, N], got i64 [2] on cpu"},
      {[&] { pad(x, {1}); },
       "pad: expected two numbers for each of at most 2 dimensions, got 1 numbers"},
      {[&] {
         pad(x, {-2, -2});
       },
       "pad: [-2, -2] leave nothing of dimension 1 of f32 [2, 3] on cpu"},
      {[&] {
         pad(x, {3, 0}, Padding::kReflect);
       },
       "pad: 3 and 0 do not fit dimension 1 of f32 [2, 3] on cpu"},
      {[&] { norm(i); }, "norm: expected a floating-point tensor, got i64 [2] on cpu"},
      {[&] { trace(i); }, "trace: expected a matrix, got i64 [2] on cpu"},
      {[&] { outer(x, i); }, "outer: expected vectors, got f32 [2, 3] on cpu and i64 [2] on cpu"},
      {[&] { einsum("ij,j", {x}); }, "einsum: \"ij,j\" has 2 operands, got 1"},
      {[&] { einsum("i->i", {x}); },
       "einsum: \"i\" of \"i->i\" does not have the dimensions of f32 [2, 3] on cpu"},
      {[&] { einsum("i2->i", {x}); }, "einsum: expected letters and \"...\", got '2' in \"i2->i\""},
      {[&] { einsum("ij->k", {x}); },
       "einsum: the result of \"ij->k\" has 'k' twice, or no operand has it"},
      {[&] {
         einsum("ij,ji->", {x, x});
       },
       "einsum: a dimension has 2 elements in f32 [2, 3] on cpu and 3 in f32 [2, 3] on cpu"},
      {[&] { einsum("ii", {x}); }, "einsum: the label 'i' means 2 and 3 elements of"},
      {[&] { topk(x, 4); },
       "topk: expected between 0 and 3 elements of dimension 1 of f32 [2, 3] on cpu, got 4"},
      {[&] { sort(x, 2); }, "sort: "},
      {[&] { cumsum(x, 2); }, "cumsum: "},
      {[&] { index(x, {places({2})}); },
       "index: index 2 is outside dimension 0 of f32 [2, 3] on cpu"},
      {[&] {
         index(x, {{}, {}});
       },
       "index: expected an index for at least one dimension of"},
      {[&] {
         index(x, {i, i, i});
       },
       "index: 3 indices are more than the dimensions of f32 [2, 3] on cpu"},
      {[&] {
         index(Tensor::zeros({2, 4}), {mask});
       },
       "index: the mask bool [2, 3] on cpu does not have the sizes of f32 [2, 4] on cpu"},
      {[&] { index_put(x, {i}, Tensor::zeros({4})); }, "index_put: "},
      {[&] { index_put(x, {i}, i); }, "index_put: f32 [2, 3] on cpu and i64 [2] on cpu differ in"},
      {[&] {
         linear(x, wide({2, 3}));
       },
       "linear: f64 is not mixed with narrower floats, expected all or none of them to be f64, got "
       "f32 [2, 3] on cpu and f64 [2, 3] on cpu; cast() one of them"},
      {[&] {
         linear(x, Tensor::zeros({2, 3}), wide({2}));
       },
       "linear: f64 is not mixed"},
      {[&] {
         mlp(wide({2, 3}), x, {}, Tensor::zeros({3, 2}), {});
       },
       "mlp: f64 is not mixed"},
      {[&] {
         conv2d(wide({1, 2, 4, 4}), image);
       },
       "conv2d: f64 is not mixed"},
      {[&] { layer_norm(x, wide({3}), {}); }, "layer_norm: f64 is not mixed"},
      {[&] {
         add_layer_norm(x, wide({2, 3}), {}, {});
       },
       "add_layer_norm: f64 is not mixed"},
      {[&] {
         cross_entropy(x, wide({2, 3}));
       },
       "cross_entropy: f64 is not mixed"},
      {[&] {
         attention(image, image, wide({1, 2, 4, 4}));
       },
       "attention: expected q, k and v of one dtype, got f32 [1, 2, 4, 4] on cpu, f32 [1, 2, 4, 4] "
       "on cpu and f64 [1, 2, 4, 4] on cpu"},
      {[&] { rms_norm(x, Tensor::zeros({2})); }, "rms_norm: weight and bias must have shape [3]"},
      {[&] { group_norm(image, 3); },
       "group_norm: expected [N, C, ...] with channels for 3 groups, got f32 [1, 2, 4, 4] on cpu"},
      {[&] { group_norm(image, 1, x); }, "group_norm: expected shape [2], that of the channels of"},
      {[&] {
         instance_norm(Tensor::zeros({1, 2, 1}));
       },
       "instance_norm: needs more than one value per channel, got f32 [1, 2, 1] on cpu"},
      {[&] { conv1d(x, x); }, "conv1d: expected sequences [N, C, L] and a weight [O, C/groups, K]"},
      {[&] {
         conv_transpose2d(image, Tensor::zeros({3, 1, 2, 2}));
       },
       "conv_transpose2d: images f32 [1, 2, 4, 4] on cpu and weight f32 [3, 1, 2, 2] on cpu do "
       "not"},
      {[&] {
         conv_transpose2d(image, Tensor::zeros({2, 1, 2, 2}), {}, {.output_padding = 1});
       },
       "conv_transpose2d: expected a positive stride and dilation, a padding that is not negative"},
      {[&] { adaptive_avg_pool2d(image, 0); },
       "adaptive_avg_pool2d: expected images and a size of"},
      {[&] { interpolate(image, {}); }, "interpolate: expected either a size or a scale factor"},
      {[&] { interpolate(image, {.size = Size2d(0)}); },
       "interpolate: expected images and a result of at least one pixel, got 0 of"},
      {[&] { nll_loss(x, Tensor::zeros({3}, DType::i64)); },
       "nll_loss: expected i64 labels of shape [2], got i64 [3] on cpu"},
      {[&] {
         nll_loss(x, places({0, 3}));
       },
       "nll_loss: label 3 at position 1 is not one of the 3 classes"},
      {[&] { nll_loss(x, i, {.reduction = LossReduction::kBatchMean}); },
       "nll_loss: a sum over the batch's size is kl_div's alone"},
      {[&] { smooth_l1_loss(x, x, LossReduction::kMean, -1); },
       "smooth_l1_loss: beta must not be negative, got -1"},
      {[&] { cosine_similarity(x, x, 2); }, "cosine_similarity: "},
      {[&] {
         attention(image, Tensor::zeros({1, 3, 4, 4}), Tensor::zeros({1, 3, 4, 4}));
       },
       "attention: q f32 [1, 2, 4, 4] on cpu, k f32 [1, 3, 4, 4] on cpu"},
      {[&] { attention(image, image, image, {.mask = x}); }, "attention: "},
      {[&] {
         attention(image, image, image, {.mask = Tensor::zeros({4, 4}, DType::i64)});
       },
       "attention: expected a bool or floating mask that broadcasts to [1, 2, 4, 4], got i64 [4, "
       "4]"},
      {[&] { max_pool2d(image, {.dilation = 0}); },
       "max_pool2d: expected a positive kernel, stride and dilation"},
      {[&] { max_pool2d(image, {.kernel = 3, .padding = 2}); },
       "max_pool2d: expected a padding of at most half the kernel, which reaches over 3, got 2"},
      {[&] { max_pool2d(image, {.kernel = 2, .padding = 4, .dilation = 8}); },
       "max_pool2d: a window of 2 steps of 8 holds no pixel of images f32 [1, 2, 4, 4]"},
      {[&] { avg_pool2d(image, {.dilation = 2}); }, "avg_pool2d: windows have no dilation"},
      {[&] { unique(x, false, false, 2); }, "unique: "},
  };
  for (const Refusal& refusal : refusals) {
    INFO(refusal.message);
    CHECK_THROWS_AS(refusal.run(), Error);
    CHECK_THROWS_WITH(refusal.run(), Catch::StartsWith(refusal.message));
  }
}

}  // namespace
}  // namespace weft
