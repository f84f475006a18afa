// Muon against its equations in plain loops, and the iteration that makes matrices orthogonal.
#include "optim/muon.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "autograd/ops.h"
#include "optim/registry.h"

using namespace weft;
using namespace weft::optim;

namespace {

using Vector = std::vector<double>;

struct Matrix {
  int64_t rows = 0, columns = 0;
  Vector values;

  double at(int64_t i, int64_t j) const { return values[static_cast<size_t>(i * columns + j)]; }
  double& at(int64_t i, int64_t j) { return values[static_cast<size_t>(i * columns + j)]; }
};

Matrix zeros(int64_t rows, int64_t columns) {
  return {rows, columns, Vector(static_cast<size_t>(rows * columns), 0.0)};
}

Matrix transposed(const Matrix& x) {
  Matrix y = zeros(x.columns, x.rows);
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t j = 0; j < x.columns; ++j) y.at(j, i) = x.at(i, j);
  }
  return y;
}

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c = zeros(a.rows, b.columns);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < b.columns; ++j) {
      for (int64_t k = 0; k < a.columns; ++k) c.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  }
  return c;
}

/// The equation as it stands, without a transposition of tall matrices.
Matrix orthogonal_reference(Matrix x, int steps) {
  double norm = 0;
  for (double v : x.values) norm += v * v;
  for (double& v : x.values) v /= std::sqrt(norm) + 1e-7;
  for (int s = 0; s < steps; ++s) {
    const Matrix squares = product(x, transposed(x));
    const Matrix first = product(squares, x), second = product(squares, first);
    for (size_t i = 0; i < x.values.size(); ++i) {
      x.values[i] = 3.4445 * x.values[i] - 4.7750 * first.values[i] + 2.0315 * second.values[i];
    }
  }
  return x;
}

/// The gradient of step t, from 1.
Vector gradient(int t, size_t n) {
  Vector g(n);
  for (size_t i = 0; i < n; ++i) {
    g[i] = std::sin(1.7 * t + 0.9 * static_cast<double>(i * i)) + (i % 5 == 0 ? 0.5 : 0);
  }
  return g;
}

void check_close(const Vector& got, const Vector& expected) {
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).epsilon(1e-10));
}

/// Three steps, with gradients that are half as large and scaled by 2.
void check_follows(const Shape& shape, const MuonOptions& o) {
  INFO(to_string(shape) << (o.nesterov ? " nesterov" : ""));
  const auto n = static_cast<size_t>(numel(shape));
  Vector expected(n), m(n, 0), u(n);
  for (size_t i = 0; i < n; ++i) expected[i] = std::cos(static_cast<double>(i));
  const Tensor w = Tensor::from(expected, shape).set_requires_grad(true);
  Muon optimizer(NamedTensors{{"w", w}}, o);
  for (int t = 1; t <= 3; ++t) {
    Vector g = gradient(t, n);
    for (size_t i = 0; i < n; ++i) {
      m[i] = o.momentum * m[i] + g[i];
      u[i] = o.nesterov ? g[i] + o.momentum * m[i] : m[i];
    }
    double size = 0.2;
    if (shape.size() < 2) {
      for (double& x : u) x = x > 0 ? 1 : x < 0 ? -1 : 0;
    } else {
      const int64_t rows = shape[0], columns = static_cast<int64_t>(n) / rows;
      u = orthogonal_reference({rows, columns, u}, o.steps).values;
      size *= std::sqrt(static_cast<double>(std::max(rows, columns)));
    }
    for (size_t i = 0; i < n; ++i) {
      expected[i] -= o.lr * (size * u[i] + o.weight_decay * expected[i]);
    }
    for (double& x : g) x /= 2;
    w.set_grad(Tensor::from(g, shape));
    optimizer.step(2);
  }
  check_close(w.to_vector(), expected);
}

}  // namespace

TEST_CASE("Muon follows its equation: wide and tall matrices, convolutions, vectors") {
  for (const Shape& shape : {Shape{3, 5}, Shape{6, 2}, Shape{4, 3, 2, 2}, Shape{1, 7}, Shape{8}}) {
    for (const bool nesterov : {false, true}) {
      check_follows(shape, {.lr = 0.03, .weight_decay = 0.2, .nesterov = nesterov});
    }
  }
  check_follows({4, 4}, {.lr = 0.1, .momentum = 0, .nesterov = false, .steps = 2});
}

TEST_CASE("orthogonalized matrices have singular values near 1") {
  // y y^T has them squared: what it does to any vector v of length 1 lies between the extremes.
  for (const Shape& shape : {Shape{16, 48}, Shape{48, 16}}) {
    const Tensor y = orthogonalized(Tensor::from(gradient(1, 768), shape));
    const bool is_tall = shape[0] > shape[1];
    const Tensor short_side = is_tall ? ops::transpose(y, 0, 1) : y;
    for (int t = 1; t <= 20; ++t) {
      const Tensor v = Tensor::from(gradient(t, 16), {1, 16});
      const double length = ops::sum(ops::square(v)).item();
      const double squares = ops::sum(ops::square(ops::matmul(v, short_side))).item() / length;
      CHECK(squares > 0.68 * 0.68);
      CHECK(squares < 1.14 * 1.14);
    }
  }
  CHECK(orthogonalized(Tensor::zeros({2, 3})).to_vector() == Vector(6, 0));
  CHECK(orthogonalized(Tensor::full({2, 3}, 1, DType::bf16)).dtype() == DType::f32);
  CHECK_THROWS_WITH(orthogonalized(Tensor::zeros({3})),
                    Catch::Matchers::Contains("expected a matrix"));
}

TEST_CASE("Muon keeps one tensor a parameter, takes narrow ones, and names what is wrong") {
  CHECK(state_tensors("muon") == 1);
  CHECK(state_tensors("muon", {{"momentum", 0}}) == 0);
  const Tensor w = Tensor::full({2, 2}, 1, DType::bf16).set_requires_grad(true);
  w.set_grad(Tensor::full({2, 2}, 1, DType::bf16));
  const auto optimizer = make_optimizer("muon", NamedTensors{{"w", w}}, {{"lr", 0.5}});
  optimizer->step();
  for (double x : w.to_vector()) CHECK((x > 0.8 && x < 0.95));
  CHECK_THROWS_WITH(make_optimizer("muon", NamedTensors{{"w", w}}, {{"steps", 1.5}}),
                    Catch::Matchers::Contains("steps must be a whole number"));
  CHECK_THROWS_WITH(make_optimizer("muon", NamedTensors{{"w", w}}, {{"momentum", -1}}),
                    Catch::Matchers::Contains("momentum"));
}
