#include "autograd/fp8.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/checkpoint.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "autograd/resting.h"
#include "kernels/op.h"

namespace weft {
namespace {

using Role = Fp8Scaling::Role;
using Values = std::vector<double>;

/// x times scale, rounded to the format, divided by scale again.
Values quantised(const Tensor& x, DType format, double scale) {
  Values values = x.to_vector();
  for (double& v : values) {
    const float scaled = static_cast<float>(v) * static_cast<float>(scale);
    v = (format == DType::f8e4m3 ? to_double(f8e4m3(scaled, Overflow::kSaturate))
                                 : to_double(f8e5m2(scaled, Overflow::kSaturate))) /
        scale;
  }
  return values;
}

double amax(const Tensor& x) {
  double max = 0;
  for (double v : x.to_vector()) max = std::max(max, std::abs(v));
  return max;
}

/// C [m, n] = A [m, k] B [k, n]; transposed operands are given by their strides.
Values product(const Values& a, int64_t am, int64_t ak, const Values& b, int64_t bk, int64_t bn,
               int64_t m, int64_t n, int64_t k) {
  Values c(m * n);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) c[i * n + j] += a[i * am + l * ak] * b[l * bk + j * bn];
    }
  }
  return c;
}

void check_close(const Values& got, const Values& expected, double relative) {
  REQUIRE(got.size() == expected.size());
  double largest = 0;
  for (double x : expected) largest = std::max(largest, std::abs(x));
  for (size_t i = 0; i < got.size(); ++i) {
    INFO(i);
    CHECK(std::abs(got[i] - expected[i]) <= relative * largest);
  }
}

TEST_CASE("the codes of a weight that rests in e4m3 are multiplied as they are") {
  manual_seed(5);
  const auto scaling_rule = GENERATE(Fp8Options::Scaling::kCurrent, Fp8Options::Scaling::kDelayed);
  Fp8Scaling scaling({.scaling = scaling_rule});
  Tensor weight = ops::randn({5, 7});
  rest_in(DType::f8e4m3, weight);
  const LowBits bits = low_bits(weight);
  const Fp8Scaling::Quantized q = scaling.quantize(weight, Role::kWeight, weight);
  CHECK(q.codes.is_same(bits.codes));
  CHECK(q.inverse_scale == std::ldexp(1.0, -bits.exponent));
  CHECK(!weight.storage()->is_resident());  // nobody asked for the numbers
  CHECK(scaling.state_dict({{"w", weight}}).empty());
}

TEST_CASE("linear in fp8 multiplies e4m3 forward and e5m2 with e4m3 backward") {
  manual_seed(3);
  const int64_t rows = 7, in = 150, out = 9;
  Tensor x = ops::randn({rows, in}).set_requires_grad(true);
  Tensor w = ops::randn({out, in}).set_requires_grad(true);
  Tensor b = ops::randn({out}).set_requires_grad(true);
  const Tensor dy = ops::randn({rows, out});
  Fp8Scaling scaling;
  Tensor y;
  {
    const Fp8Scope scope(scaling);  // without an Autocast the results are in f32
    y = ops::linear(x, w, b);
    backward(y, dy);
  }
  const Values qx = quantised(x, DType::f8e4m3, scaling.scale(w, Role::kInput));
  const Values qw = quantised(w, DType::f8e4m3, scaling.scale(w, Role::kWeight));
  const Values qd = quantised(dy, DType::f8e5m2, scaling.scale(w, Role::kGradient));
  // Scales fill the formats: f32 roundings of 448 / amax.
  CHECK(scaling.scale(w, Role::kInput) == Approx(448 / amax(x)).epsilon(1e-6));
  CHECK(scaling.scale(w, Role::kWeight) == Approx(448 / amax(w)).epsilon(1e-6));
  CHECK(scaling.scale(w, Role::kGradient) == Approx(57344 / amax(dy)).epsilon(1e-6));
  Values expected = product(qx, in, 1, qw, 1, in, rows, out, in);
  for (int64_t i = 0; i < rows * out; ++i) expected[i] += b.to_vector()[i % out];
  // Two intervals of K, a product with the scale, a bias, and the inverse's own rounding: 6 of f32.
  const double roundings = 6 * 0x1p-24;
  check_close(y.to_vector(), expected, roundings);
  check_close(x.grad().to_vector(), product(qd, out, 1, qw, in, 1, rows, in, out), roundings);
  check_close(w.grad().to_vector(), product(qd, 1, out, qx, in, 1, out, in, rows), roundings);
  CHECK(w.grad().dtype() == DType::f32);
  // The bias's gradient is summed from dy itself.
  Values db(out);
  for (int64_t i = 0; i < rows * out; ++i) db[i % out] += dy.to_vector()[i];
  check_close(b.grad().to_vector(), db, 8 * 0x1p-24);
}

TEST_CASE("linear_gelu in fp8 is linear, then GELU") {
  manual_seed(4);
  Tensor x = ops::randn({5, 32}).set_requires_grad(true);
  Tensor w = ops::randn({6, 32}).set_requires_grad(true), b = ops::randn({6});
  Fp8Scaling scaling;
  const Fp8Scope scope(scaling);
  const Tensor dy = ops::randn({5, 6});
  const auto run = [&](bool fused) {
    x.set_grad({}), w.set_grad({});
    const Tensor y = fused ? ops::linear_gelu(x, w, b) : ops::gelu(ops::linear(x, w, b));
    backward(y, dy);
    Values all = y.to_vector();
    for (const Tensor& g : {x.grad(), w.grad()}) {
      for (double v : g.to_vector()) all.push_back(v);
    }
    return all;
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("under an Autocast results are narrow, weight gradients f32, other ops untouched") {
  Tensor w = Tensor::full({4, 8}, 0.5).set_requires_grad(true);
  const Tensor x = Tensor::full({2, 8}, 0.25);
  Fp8Scaling scaling;
  {
    const Autocast mode(DType::bf16);
    const Fp8Scope scope(scaling);
    const Tensor y = ops::linear(x, w);
    CHECK(y.dtype() == DType::bf16);
    CHECK(y.to_vector() == Values(8, 1));
    backward(ops::sum(y));
    CHECK(ops::matmul(x, ops::transpose(w, 0, 1)).dtype() == DType::bf16);
    {
      const Fp8Scope off(std::nullopt);
      CHECK(!fp8_in_force());
    }
    CHECK(fp8_in_force() == scaling);
    CHECK(ops::linear(ops::cast(x, DType::f64), ops::cast(w, DType::f64)).dtype() == DType::f64);
  }
  CHECK(!fp8_in_force());
  CHECK(w.grad().dtype() == DType::f32);
  CHECK(w.grad().to_vector() == Values(32, 0.5));
}

TEST_CASE("a margin keeps powers of two free, and amax of 0, infinity or NaN keeps the scale") {
  Fp8Scaling scaling({.margin = 3});
  const Tensor w = Tensor::zeros({2});
  scaling.quantize(w, Role::kInput, Tensor::full({3}, 2));
  CHECK(scaling.scale(w, Role::kInput) == 448.0 / 2 / 8);
  for (double odd : {0.0, static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    scaling.quantize(w, Role::kInput, Tensor::full({3}, odd));
    CHECK(scaling.scale(w, Role::kInput) == 448.0 / 2 / 8);
  }
  CHECK_THROWS_WITH(Fp8Scaling({.history = 0}), "Fp8Scaling: history must be positive, got 0");
  CHECK_THROWS_WITH(Fp8Scaling({.margin = 17}), "Fp8Scaling: margin must lie in [0, 16], got 17");
}

TEST_CASE("delayed scales follow the largest amax of the history") {
  Fp8Scaling scaling({.scaling = Fp8Options::Scaling::kDelayed, .history = 3});
  const Tensor w = Tensor::zeros({2});
  const auto step = [&](std::initializer_list<double> maxima) {
    Fp8Scaling::Quantized q;
    for (double m : maxima) q = scaling.quantize(w, Role::kGradient, Tensor::full({2}, m));
    scaling.update();
    return q;
  };
  // The first step runs with scale 1; the largest of its micro-batches counts.
  CHECK(step({8, 2}).inverse_scale == 1);
  CHECK(scaling.scale(w, Role::kGradient) == 57344.0 / 8);
  const auto saturated = step({32});
  CHECK(saturated.codes.to_vector()[0] == 57344);  // 32 * 7168, cut off
  CHECK(scaling.scale(w, Role::kGradient) == 57344.0 / 32);
  step({1});
  step({1});
  CHECK(scaling.scale(w, Role::kGradient) == 57344.0 / 32);  // still remembered
  step({1});
  CHECK(scaling.scale(w, Role::kGradient) == 57344.0);
  step({NAN});
  CHECK(scaling.scale(w, Role::kGradient) == 57344.0);
}

/// Counts quantisations.
class CountQuantised : public kernels::LaunchHook {
 public:
  CountQuantised() { kernels::set_launch_hook(this); }
  ~CountQuantised() override { kernels::set_launch_hook(nullptr); }
  void begin(std::string_view op, std::string_view, Device, const std::string& problem) override {
    count += op == "fp8_quantize" && problem.find("f32 [4, 8]") != std::string::npos &&
             problem.find("-> none") == std::string::npos;
  }
  void end() noexcept override {}
  int count = 0;
};

TEST_CASE("a weight is quantised once per step") {
  Tensor w = Tensor::full({4, 8}, 0.5).set_requires_grad(true);
  Fp8Scaling scaling;
  const Fp8Scope scope(scaling);
  CountQuantised quantised;
  for (int part = 0; part < 3; ++part) {
    backward(ops::sum(ops::linear(Tensor::full({2, 8}, 1), w)));
  }
  CHECK(quantised.count == 1);
  {
    const NoGrad guard;
    ops::mul_(w, Tensor::scalar(2));
  }
  CHECK(ops::linear(Tensor::full({2, 8}, 1), w).to_vector() == Values(8, 8));
  CHECK(quantised.count == 2);
}

TEST_CASE("slices of a weight are multiplied by their own codes") {
  manual_seed(6);
  Tensor w = ops::randn({12, 8}).set_requires_grad(true);
  const Tensor x = ops::randn({4, 8});
  const auto product = [&](int64_t i, Fp8Scaling& scaling, bool is_own) {
    const Fp8Scope scope(scaling);
    const Tensor part = ops::narrow(is_own ? w : detach(w), 0, 4 * i, 4);
    return ops::linear(x, is_own ? part : ops::clone(part)).to_vector();
  };
  for (auto kind : {Fp8Options::Scaling::kCurrent, Fp8Options::Scaling::kDelayed}) {
    Fp8Scaling scaling({.scaling = kind});
    for (bool records : {true, false}) {
      const GradMode mode(records);
      for (int64_t i = 0; i < 3; ++i) {
        Fp8Scaling alone;
        CHECK(product(i, scaling, true) == product(i, alone, false));
      }
    }
  }
}

TEST_CASE("checkpointed layers are recomputed in fp8") {
  manual_seed(5);
  Tensor w = ops::randn({8, 8}).set_requires_grad(true);
  const Tensor x = ops::randn({4, 8});
  const auto gradient = [&](bool checkpointed) {
    w.set_grad({});
    Fp8Scaling scaling;
    Tensor y;
    {
      const Fp8Scope scope(scaling);
      const auto layer = [&](const Tensors& in) { return ops::tanh(ops::linear(in[0], w)); };
      y = checkpointed ? checkpoint(layer, {x}) : layer({x});
    }
    backward(ops::sum(y));
    return w.grad().to_vector();
  };
  CHECK(gradient(true) == gradient(false));
}

TEST_CASE("a loss outlives the scaling that it was computed under") {
  manual_seed(7);
  const bool checkpointed = GENERATE(false, true);
  const Fp8Options delayed{.scaling = Fp8Options::Scaling::kDelayed};
  Tensor w = ops::randn({8, 8}).set_requires_grad(true);
  const Tensor x = ops::randn({4, 8});
  const auto layer = [&](const Tensors& in) { return ops::linear(in[0], w); };
  const auto gradient = [&](bool outlives) {
    w.set_grad({});
    std::optional<Fp8Scaling> scaling(delayed);
    Tensor y;
    {
      const Fp8Scope scope(*scaling);
      y = checkpointed ? checkpoint(layer, {x}) : layer({x});
    }
    if (outlives) scaling.emplace(delayed);
    backward(ops::sum(y));
    // Another scaling in the place of the first has met nothing.
    CHECK(scaling->state_dict({{"w", w}}).empty() == outlives);
    return w.grad().to_vector();
  };
  CHECK(gradient(true) == gradient(false));
}

TEST_CASE("delayed scales remember nothing of an evaluation") {
  const Fp8Options delayed{.scaling = Fp8Options::Scaling::kDelayed, .history = 4};
  const auto state_after = [&](bool evaluates) {
    Tensor w = Tensor::full({4, 8}, 0.5).set_requires_grad(true);
    Fp8Scaling scaling(delayed);
    const Fp8Scope scope(scaling);
    const auto evaluate = [&](double x) {
      const NoGrad guard;
      if (evaluates) ops::linear(Tensor::full({2, 8}, x), w);
    };
    for (const double x : {1.0, 2.0}) {
      evaluate(100 * x);
      backward(ops::sum(ops::linear(Tensor::full({2, 8}, x), w)));
      evaluate(200 * x);
      scaling.update();
      evaluate(300 * x);
    }
    return scaling.state_dict({{"w", w}});
  };
  const NamedTensors plain = state_after(false), evaluated = state_after(true);
  REQUIRE(plain.size() == 3);
  REQUIRE(evaluated.size() == 3);
  for (size_t i = 0; i < plain.size(); ++i) {
    INFO(plain[i].first);
    CHECK(plain[i].first == evaluated[i].first);
    CHECK(plain[i].second.to_vector() == evaluated[i].second.to_vector());
  }
  CHECK(plain[1].second.to_vector() == std::vector<double>{448 / 0.5, 0.5, 0.5});
}

TEST_CASE("the state of delayed scaling continues where it was taken") {
  const Fp8Options delayed{.scaling = Fp8Options::Scaling::kDelayed, .history = 4};
  const Tensor w = Tensor::zeros({2}), v = Tensor::zeros({2});
  const NamedTensors names = {{"fc.weight", w}, {"head.weight", v}};
  Fp8Scaling first(delayed), second(delayed);
  const auto step = [&](Fp8Scaling& s, double size) {
    s.quantize(w, Role::kInput, Tensor::full({2}, size));
    s.quantize(w, Role::kWeight, Tensor::full({2}, 2 * size));
    s.update();
  };
  for (double size : {1.0, 5.0, 3.0}) step(first, size);
  const auto state = first.state_dict(names);
  REQUIRE(state.size() == 2);
  CHECK(state[0].first == "fc.weight.fp8_input");
  CHECK(state[0].second.shape() == Shape{4});
  CHECK(state[0].second.to_vector()[1] == 3);
  second.load_state_dict(state, names);
  for (double size : {0.5, 0.5, 0.5}) {
    step(first, size);
    step(second, size);
    CHECK(first.scale(w, Role::kInput) == second.scale(w, Role::kInput));
    CHECK(first.scale(w, Role::kWeight) == second.scale(w, Role::kWeight));
  }
  CHECK(Fp8Scaling().state_dict(names).empty());
  CHECK_THROWS_WITH(second.load_state_dict({{"other.fp8_input", Tensor::zeros({2})}}, names),
                    "Fp8Scaling: the state holds tensors of other parameters");
  CHECK_THROWS_WITH(second.load_state_dict({{"fc.weight.fp8_input", Tensor::zeros({9})}}, names),
                    Catch::Contains("expected f32 [1 + n] with n up to 4"));
  CHECK_THROWS_WITH(second.load_state_dict({{"fc.weight.fp8_input", Tensor::zeros({2})}}, names),
                    Catch::Contains("has the scale 0"));
}

}  // namespace
}  // namespace weft
