#include "nn/init.h"

#include <cmath>

#include "autograd/random.h"
#include "autograd/raw.h"
#include "kernels/fill/fill.h"
#include "kernels/random/random.h"
#include "nn/meta.h"

namespace weft::nn::init {
namespace {

using kernels::Distribution;

Tensor draw(kernels::RandomProblem problem) {
  Generator& g = generator();
  problem.seed = g.seed;
  problem.stream = g.stream;
  problem.offset = g.take(problem.y.numel());
  if (!has_memory(problem.y)) return problem.y;
  kernels::random(problem);
  problem.y.bump_version();
  return problem.y;
}

}  // namespace

Tensor constant(Tensor x, double value) {
  WEFT_CHECK(x.defined(), "constant: undefined tensor");
  if (!has_memory(x)) return x;
  kernels::fill({.y = x, .value = value});
  x.bump_version();
  return x;
}
Tensor zeros(Tensor x) { return constant(std::move(x), 0); }
Tensor ones(Tensor x) { return constant(std::move(x), 1); }

Tensor uniform(Tensor x, double low, double high) {
  raw::check_floating("uniform", x);
  WEFT_CHECK(low <= high, "uniform: low {} lies above high {}", low, high);
  if (low == high) return constant(std::move(x), low);
  return draw(
      {.y = std::move(x), .distribution = Distribution::kUniform, .low = low, .high = high});
}

Tensor normal(Tensor x, double mean, double std) {
  raw::check_floating("normal", x);
  WEFT_CHECK(std >= 0, "normal: std must not be negative, got {}", std);
  if (std == 0) return constant(std::move(x), mean);
  return draw({.y = std::move(x), .distribution = Distribution::kNormal, .mean = mean, .std = std});
}

Tensor trunc_normal(Tensor x, double mean, double std, double low, double high) {
  raw::check_floating("trunc_normal", x);
  WEFT_CHECK(std > 0 && low < high,
             "trunc_normal: expected std > 0 and low < high, got {}, {} and {}", std, low, high);
  return draw({.y = std::move(x),
               .distribution = Distribution::kTruncNormal,
               .low = low,
               .high = high,
               .mean = mean,
               .std = std});
}

Fans fans(const Tensor& weight, std::string_view op) {
  WEFT_CHECK(weight.defined() && weight.dim() >= 2,
             "{}: expected a weight of at least two dimensions, got {}", op, weight);
  int64_t kernel = 1;
  for (int i = 2; i < weight.dim(); ++i) kernel *= weight.shape()[i];
  return {weight.size(1) * kernel, weight.size(0) * kernel};
}

Tensor xavier_uniform(Tensor weight, double gain) {
  const auto [in, out] = fans(weight, "xavier_uniform");
  const double bound = gain * std::sqrt(6.0 / static_cast<double>(in + out));
  return uniform(std::move(weight), -bound, bound);
}

Tensor kaiming_uniform(Tensor weight, double slope) {
  const int64_t in = fans(weight, "kaiming_uniform").in;
  const double bound = std::sqrt(6.0 / ((1 + slope * slope) * static_cast<double>(in)));
  return uniform(std::move(weight), -bound, bound);
}

Tensor kaiming_normal(Tensor weight, Fan fan) {
  const auto [in, out] = fans(weight, "kaiming_normal");
  const double count = static_cast<double>(fan == Fan::kIn ? in : out);
  return normal(std::move(weight), 0, std::sqrt(2.0 / count));
}

}  // namespace weft::nn::init
