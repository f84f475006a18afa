#include "optim/clip.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "autograd/ops.h"

namespace weft::optim {
namespace {

Tensor with_gradient(const std::vector<float>& gradient) {
  const Shape shape = {static_cast<int64_t>(gradient.size())};
  Tensor p = Tensor::zeros(shape).set_requires_grad(true);
  p.set_grad(Tensor::from(gradient, shape));
  return p;
}

TEST_CASE("clip_grad_norm scales by max_norm / (norm + 1e-6), as PyTorch") {
  const Tensor a = with_gradient({3, 4, 0, 12}), b = with_gradient({84});
  const Tensor idle = Tensor::zeros({2}).set_requires_grad(true);
  const Tensor held = a.grad();
  CHECK(grad_norm({a, b, idle}) == 85);
  CHECK(clip_grad_norm({a, idle, b}, 10) == 85);
  // PyTorch 1.13; one rounding of the factor, one of the product.
  const double two_roundings = 2.4e-7;
  const std::vector<double> expected = {0.35294118523597717, 0.47058823704719543, 0,
                                        1.41176474094390869};
  for (int i = 0; i < 4; ++i) {
    CHECK(held.to_vector()[i] == Approx(expected[i]).epsilon(two_roundings));
  }
  CHECK(b.grad().item() == Approx(9.88235282897949219).epsilon(two_roundings));
  CHECK_FALSE(idle.grad().defined());
}

TEST_CASE("a norm below the limit leaves the gradients alone, bit for bit") {
  const Tensor a = with_gradient({0.1f, 0.2f});
  const std::vector<double> before = a.grad().to_vector();
  const uint64_t version = a.grad().version();
  CHECK(clip_grad_norm({a}, 1) == Approx(std::sqrt(0.05)));
  CHECK(a.grad().to_vector() == before);
  CHECK(a.grad().version() == version);
  CHECK(clip_grad_norm({}, 1) == 0);
  CHECK(clip_coefficient(3, 1.5) == 1.5 / (3 + 1e-6));
  CHECK(clip_coefficient(1, 1.5) == 1);
}

TEST_CASE("norms that are not finite are reported on request, and spread otherwise") {
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor a = with_gradient({1, inf});
  CHECK_THROWS_WITH(clip_grad_norm({a}, 1, true),
                    "clip_grad_norm: the norm of the gradients is inf");
  CHECK(a.grad().to_vector()[0] == 1);
  CHECK(clip_grad_norm({a}, 1) == inf);
  CHECK(a.grad().to_vector()[0] == 0);
  CHECK(std::isnan(a.grad().to_vector()[1]));
  CHECK_THROWS_WITH(clip_grad_norm({a}, -1),
                    "clip_grad_norm: max_norm must not be negative, got -1");
}

TEST_CASE("clip_grad_value clamps in place") {
  const Tensor a = with_gradient({-3, 0.5f, 7});
  const Tensor held = a.grad();
  clip_grad_value({a, Tensor::zeros({1})}, 2);
  CHECK(held.to_vector() == std::vector<double>{-2, 0.5, 2});
  CHECK_THROWS_WITH(clip_grad_value({a}, -2),
                    "clip_grad_value: the limit must not be negative, got -2");
}

TEST_CASE("gradients of any strides are clipped") {
  Tensor p = Tensor::zeros({2, 2}).set_requires_grad(true);
  const Tensor g = Tensor::from(std::vector<float>{3, 0, 4, 0}, {2, 2});
  p.set_grad(ops::transpose(g, 0, 1));
  CHECK(clip_grad_norm({p}, 2.5) == 5);
  CHECK(p.grad().to_vector()[1] == Approx(2).epsilon(1e-6));
  p.set_grad(ops::expand(Tensor::from(std::vector<float>{3}, {1, 1}), {2, 2}));
  clip_grad_value({p}, 2);
  CHECK(p.grad().to_vector() == std::vector<double>(4, 2));
}

}  // namespace
}  // namespace weft::optim
