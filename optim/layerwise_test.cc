// LARS and LAMB against their equations in double, and what refuses them.
#include "optim/layerwise.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "optim/registry.h"

using namespace weft;
using namespace weft::optim;

namespace {

using Vector = std::vector<double>;

double norm(const Vector& x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

/// The gradient of step t, from 1.
Vector gradient(int t, size_t n) {
  Vector g(n);
  for (size_t i = 0; i < n; ++i) g[i] = std::sin(1.7 * t + 0.9 * static_cast<double>(i));
  return g;
}

/// Three steps on a parameter of this shape, with gradients that are half as large and scaled by 2.
Vector trained(Optimizer& optimizer, const Tensor& w) {
  for (int t = 1; t <= 3; ++t) {
    Vector g = gradient(t, static_cast<size_t>(w.numel()));
    for (double& x : g) x /= 2;
    w.set_grad(Tensor::from(g, w.shape()));
    optimizer.step(2);
  }
  return w.to_vector();
}

const Vector kStart = {0.5, -1, 2, 0.25, 3, -0.75};

void check_close(const Vector& got, const Vector& expected) {
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).epsilon(1e-12));
}

}  // namespace

TEST_CASE("LARS follows its equation; vectors keep the rate") {
  const LarsOptions o{.lr = 0.3, .momentum = 0.9, .weight_decay = 0.1, .trust_coefficient = 0.02};
  for (const Shape& shape : {Shape{2, 3}, Shape{6}}) {
    const Tensor w = Tensor::from(kStart, shape).set_requires_grad(true);
    Lars optimizer(NamedTensors{{"w", w}}, o);
    Vector expected = kStart, v(6, 0);
    for (int t = 1; t <= 3; ++t) {
      const Vector g = gradient(t, 6);
      const double size = norm(expected);
      const double rate =
          shape.size() > 1 ? o.trust_coefficient * size / (norm(g) + o.weight_decay * size) : 1;
      for (size_t i = 0; i < 6; ++i) {
        v[i] = o.momentum * v[i] + rate * (g[i] + o.weight_decay * expected[i]);
        expected[i] -= o.lr * v[i];
      }
    }
    check_close(trained(optimizer, w), expected);
  }
}

TEST_CASE("LAMB follows its equation; vectors keep the rate") {
  const LambOptions o{.lr = 0.05, .eps = 1e-6, .weight_decay = 0.1};
  for (const Shape& shape : {Shape{3, 2}, Shape{6}}) {
    const Tensor w = Tensor::from(kStart, shape).set_requires_grad(true);
    Lamb optimizer(NamedTensors{{"w", w}}, o);
    Vector expected = kStart, m(6, 0), v(6, 0), u(6);
    for (int t = 1; t <= 3; ++t) {
      const Vector g = gradient(t, 6);
      for (size_t i = 0; i < 6; ++i) {
        m[i] = o.beta1 * m[i] + (1 - o.beta1) * g[i];
        v[i] = o.beta2 * v[i] + (1 - o.beta2) * g[i] * g[i];
        u[i] = m[i] / (1 - std::pow(o.beta1, t)) /
                   (std::sqrt(v[i] / (1 - std::pow(o.beta2, t))) + o.eps) +
               o.weight_decay * expected[i];
      }
      const double rate = shape.size() > 1 ? norm(expected) / norm(u) : 1;
      for (size_t i = 0; i < 6; ++i) expected[i] -= o.lr * rate * u[i];
    }
    check_close(trained(optimizer, w), expected);
  }
}

TEST_CASE("a layer of zeros, or without a gradient, moves at the plain rate") {
  const Tensor w = Tensor::zeros({2, 2}, DType::f64).set_requires_grad(true);
  w.set_grad(Tensor::full({2, 2}, 1, DType::f64));
  Lars lars(NamedTensors{{"w", w}}, {.lr = 0.5, .momentum = 0});
  lars.step();
  CHECK(w.to_vector() == Vector(4, -0.5));
  w.set_grad(Tensor::zeros({2, 2}, DType::f64));
  lars.step();
  CHECK(w.to_vector()[0] == Approx(-0.5 * (1 - 0.5e-4)));
  CHECK(state_tensors("lars") == 1);
  CHECK(state_tensors("lamb") == 2);
  CHECK_THROWS_WITH(make_optimizer("lars", NamedTensors{{"w", w}}, {{"trust_coefficient", -1}}),
                    Catch::Matchers::Contains("trust_coefficient"));
}
