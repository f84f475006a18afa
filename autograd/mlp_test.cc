// The fused multilayer perceptron beside its parts.
#include <catch2/catch.hpp>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/fp8.h"
#include "autograd/ops.h"
#include "autograd/random.h"

using namespace weft;

namespace {

/// The result and the gradients of all inputs, fused or apart.
std::vector<std::vector<double>> results(bool fused, DType weights, bool with_bias) {
  manual_seed(3);
  Tensors in = {ops::randn({3, 7, 24}), ops::randn({40, 24}), ops::randn({40}),
                ops::randn({16, 40}), ops::randn({16})};
  for (Tensor& t : in) {
    t = ops::cast(t, weights);
    t.set_requires_grad(true);
  }
  const Tensor b1 = with_bias ? in[2] : Tensor(), b2 = with_bias ? in[4] : Tensor();
  const Tensor y = fused ? ops::mlp(in[0], in[1], b1, in[3], b2)
                         : ops::linear(ops::linear_gelu(in[0], in[1], b1), in[3], b2);
  backward(ops::sum(ops::mul(y, y)));
  std::vector<std::vector<double>> all = {y.to_vector()};
  for (const Tensor& t : in) {
    all.push_back(t.grad().defined() ? t.grad().to_vector() : std::vector<double>());
  }
  return all;
}

}  // namespace

TEST_CASE("mlp has the bits of linear_gelu and linear") {
  const DType weights = GENERATE(DType::f32, DType::bf16, DType::f16);
  const bool with_bias = GENERATE(true, false);
  CAPTURE(name(weights), with_bias);
  CHECK(results(true, weights, with_bias) == results(false, weights, with_bias));
  if (weights != DType::f32) return;
  const Autocast mode(DType::bf16);
  CHECK(results(true, weights, with_bias) == results(false, weights, with_bias));
  Fp8Scaling scaling;
  const Fp8Scope fp8(scaling);
  CHECK(results(true, weights, with_bias) == results(false, weights, with_bias));
}

TEST_CASE("mlp skips the gradients that nobody needs") {
  const Tensor x = ops::randn({4, 6}), w1 = ops::randn({8, 6}), b1 = ops::randn({8});
  Tensor w2 = ops::randn({3, 8}), b2 = ops::randn({3});
  w2.set_requires_grad(true);
  b2.set_requires_grad(true);
  backward(ops::sum(ops::mlp(x, w1, b1, w2, b2)));
  CHECK(w2.grad().shape() == Shape{3, 8});
  CHECK(b2.grad().to_vector() == std::vector<double>{4, 4, 4});
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("an mlp whose matrices do not fit is refused as a linear layer is") {
  const Tensor x = ops::randn({4, 6}), w1 = ops::randn({8, 6}), w2 = ops::randn({3, 7});
  CHECK_THROWS_WITH(ops::mlp(x, w1, {}, w2, {}),
                    Catch::Contains("linear") && Catch::Contains("expected a last dimension"));
  CHECK_THROWS_WITH(ops::mlp(x, w2, {}, w1, {}), Catch::Contains("linear_gelu"));
}
