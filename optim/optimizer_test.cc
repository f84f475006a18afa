#include <catch2/catch.hpp>
#include <cmath>

#include "autograd/ops.h"
#include "optim/adam.h"
#include "optim/optimizer_state.h"
#include "optim/sgd.h"

namespace weft::optim {
namespace {

constexpr int kElements = 4;
const std::vector<double> kStart = {0.5, -1.25, 2, -0.0625};

double gradient(int element, int step) { return ((element * 7 + step * 3) % 11 - 5) / 8.0; }

Tensor gradients_at(int step, DType dtype) {
  std::vector<double> g;
  for (int i = 0; i < kElements; ++i) g.push_back(gradient(i, step));
  return ops::cast(Tensor::from(g, {kElements}), dtype);
}

/// The parameters after `steps` steps from kStart with the gradients above.
template <class Opt, class O>
std::vector<double> run(const O& options, DType dtype = DType::f64, int steps = 3,
                        double gradient_scale = 1) {
  Tensor p = ops::cast(Tensor::from(kStart, {kElements}), dtype).set_requires_grad(true);
  Opt optimizer(Tensors{p}, options);
  for (int step = 0; step < steps; ++step) {
    p.set_grad(ops::cast(gradients_at(step, DType::f64) / gradient_scale, dtype));
    optimizer.step(gradient_scale);
  }
  return p.to_vector();
}

void check_close(const std::vector<double>& got, const std::vector<double>& expected,
                 double epsilon) {
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).epsilon(epsilon));
}

// Three steps in f64 by PyTorch 1.13. Its Adam computes the mean as beta1 m + (1 - beta1) g and
// ours as m + (1 - beta1) (g - m), hence not the last bit.
TEST_CASE("three steps equal PyTorch's") {
  const double few_roundings = 1e-14;
  check_close(run<AdamW>(AdamWOptions{.lr = 0.01, .weight_decay = 0.1}),
              {0.5231199680907949, -1.2688560726081108, 2.0020733967305357, -0.07568604793994474},
              few_roundings);
  check_close(run<Adam>(AdamOptions{.lr = 0.01}),
              {0.5246474443423318, -1.272631710931469, 2.0080900520999982, -0.07589526548244001},
              few_roundings);
  check_close(run<Adam>(AdamOptions{
                  .lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1}),
              {0.5450185617839381, -1.2873958679842537, 1.9895335001859693, -0.0864939363379796},
              few_roundings);
  check_close(run<SGD>(SgdOptions{.lr = 0.1}),
              {0.5750000000000001, -1.2999999999999998, 1.9624999999999997, -0.0875},
              few_roundings);
  check_close(
      run<SGD>(SgdOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.01}),
      {0.6846710905000001, -1.3531145684375, 2.02251493075, -0.195880774984375}, few_roundings);
  check_close(
      run<SGD>(SgdOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true}),
      {0.754186504258, -1.42357322290125, 1.9408176487569997, -0.17480248500881254}, few_roundings);
}

/// AdamW in double, straight from the paper's algorithm.
std::vector<double> adamw_in_double(const AdamWOptions& o, int steps) {
  std::vector<double> p = kStart, m(kElements), v(kElements);
  for (int step = 1; step <= steps; ++step) {
    for (int i = 0; i < kElements; ++i) {
      const double g = gradient(i, step - 1);
      p[i] -= o.lr * o.weight_decay * p[i];
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(o.beta1, step));
      const double v_hat = v[i] / (1 - std::pow(o.beta2, step));
      p[i] -= o.lr * m_hat / (std::sqrt(v_hat) + o.eps);
    }
  }
  return p;
}

TEST_CASE("AdamW follows the algorithm in double for a hundred steps") {
  const AdamWOptions options{.lr = 0.02, .beta1 = 0.85, .beta2 = 0.98, .weight_decay = 0.3};
  const std::vector<double> expected = adamw_in_double(options, 100);
  // Each step rounds p about four times, at a size of at most 2; the moments are means of
  // gradients.
  check_close(run<AdamW>(options, DType::f64, 100), expected, 1e-12);
  check_close(run<AdamW>(options, DType::f32, 100), expected, 1e-4);
}

TEST_CASE("a gradient scale is a multiplication of the gradients") {
  // 8 g is exact and so is its division by 8.
  const AdamWOptions options{.lr = 0.02};
  CHECK(run<AdamW>(options, DType::f32, 5, 8) == run<AdamW>(options, DType::f32, 5));
  const SgdOptions sgd{.lr = 0.02, .momentum = 0.5};
  CHECK(run<SGD>(sgd, DType::f32, 5, 0.125) == run<SGD>(sgd, DType::f32, 5));
}

TEST_CASE("parameters without a gradient are skipped, state and all") {
  Tensor a = Tensor::from(std::vector<float>{1, 2}, {2}).set_requires_grad(true);
  Tensor b = Tensor::from(std::vector<float>{3}, {1}).set_requires_grad(true);
  AdamW optimizer(NamedTensors{{"a", a}, {"b", b}}, {.lr = 0.5, .weight_decay = 0.5});
  a.set_grad(Tensor::full({2}, 1));
  const uint64_t version = a.version();
  optimizer.step();
  CHECK(a.version() > version);
  CHECK(b.item() == 3);
  CHECK(optimizer.state_dict().tensors.size() == 3);  // a's only

  // b starts at its own first step, with its own bias correction: lr * 1 * sign.
  optimizer.zero_grad();
  CHECK_FALSE(a.grad().defined());
  const std::vector<double> before = a.to_vector();
  b.set_grad(Tensor::full({1}, 4));
  optimizer.step();
  CHECK(a.to_vector() == before);
  CHECK(b.item() == Approx(3 * 0.75 - 0.5).epsilon(1e-6));
}

TEST_CASE("groups have options of their own") {
  Tensor a = Tensor::from(std::vector<double>{1}, {1}).set_requires_grad(true);
  Tensor b = Tensor::from(std::vector<double>{1}, {1}).set_requires_grad(true);
  SGD optimizer({{.parameters = {{"a", a}}}, {.parameters = {{"b", b}}, .options = {{"lr", 0.25}}}},
                {.lr = 0.5, .weight_decay = 1});
  a.set_grad(Tensor::from(std::vector<double>{1}, {1}));
  b.set_grad(a.grad());
  optimizer.groups()[1]["weight_decay"] = 0;
  optimizer.step();
  CHECK(a.item() == 0);     // 1 - 0.5 (1 + 1)
  CHECK(b.item() == 0.75);  // 1 - 0.25
  CHECK(optimizer.lr() == 0.5);
  optimizer.set_lr(2);
  CHECK(optimizer.groups()[1]["lr"] == 2);
}

TEST_CASE("vectors and named tensors are exempted from weight decay") {
  const NamedTensors parameters = {{"conv.weight", Tensor::zeros({2, 3})},
                                   {"conv.bias", Tensor::zeros({2})},
                                   {"encoder.pos_embedding", Tensor::zeros({1, 2, 3})}};
  const AdamW optimizer(without_decay_of_vectors(parameters, {"encoder.pos_embedding"}),
                        {.weight_decay = 0.3});
  const auto& groups = optimizer.groups();
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].parameters.size() == 1);
  CHECK(groups[0]["weight_decay"] == 0.3);
  CHECK(groups[1].parameters[1].first == "encoder.pos_embedding");
  CHECK(groups[1]["weight_decay"] == 0);
}

TEST_CASE("arguments outside PyTorch's ranges are refused by name") {
  const Tensors p = {Tensor::zeros({2}).set_requires_grad(true)};
  CHECK_THROWS_WITH(AdamW(p, {.lr = -1}), "AdamW: lr must be at least 0, got -1");
  CHECK_THROWS_WITH(AdamW(p, {.eps = -1e-8}), "AdamW: eps must be at least 0, got -1e-08");
  CHECK_THROWS_WITH(AdamW(p, {.beta1 = 1}), "AdamW: beta1 must lie in [0, 1), got 1");
  CHECK_THROWS_WITH(Adam(p, {.beta2 = -0.1}), "Adam: beta2 must lie in [0, 1), got -0.1");
  CHECK_THROWS_WITH(Adam(p, {.weight_decay = -1}), "Adam: weight_decay must be at least 0, got -1");
  CHECK_THROWS_WITH(SGD(p, {.lr = NAN}), "SGD: lr must be at least 0, got nan");
  CHECK_THROWS_WITH(SGD(p, {.momentum = -0.5}), "SGD: momentum must be at least 0, got -0.5");
  CHECK_THROWS_WITH(SGD(p, {.nesterov = true}),
                    "SGD: nesterov needs a momentum and no dampening, got 0 and 0");
  CHECK_THROWS_WITH(SGD({{.parameters = {{"w", p[0]}}, .options = {{"beta1", 0.5}}}}),
                    "SGD: unknown option \"beta1\"");
  CHECK_THROWS_WITH(SGD(Tensors{p[0], p[0]}), "SGD: parameter \"1\" appears twice");
  SGD optimizer(p);
  CHECK_THROWS_WITH(optimizer.groups()[0]["beta1"], "optimizer: no option \"beta1\"");
}

TEST_CASE("narrow parameters are updated in f32 and rounded once") {
  for (DType dtype : {DType::bf16, DType::f16}) {
    Tensor p = Tensor::full({2}, 1, dtype).set_requires_grad(true);
    AdamW adam(Tensors{p}, {.lr = 0.01, .weight_decay = 0});
    p.set_grad(Tensor::full({2}, 0.5, dtype));
    adam.step();
    // 1 - 0.01 to three or four digits; an update below half of their last is lost.
    CHECK(p.dtype() == dtype);
    CHECK(p.to_vector()[0] == (dtype == DType::bf16 ? 0.98828125 : 0.990234375));
    adam.set_lr(1e-4);
    p.set_data(Tensor::full({2}, 1, dtype));
    adam.step();
    CHECK(p.to_vector()[0] == 1);
    const OptimizerState state = adam.state_dict();
    CHECK(state.tensors[0].second.dtype() == dtype);
    AdamW other(Tensors{p});
    CHECK_NOTHROW(other.load_state_dict(state));
  }
}

TEST_CASE("what a step cannot update is named") {
  Tensor p = Tensor::zeros({2}, DType::f8e4m3).set_requires_grad(true);
  SGD optimizer(NamedTensors{{"fc.weight", p}});
  p.set_grad(Tensor::zeros({2}));
  CHECK_THROWS_WITH(optimizer.step(),
                    Catch::Contains("parameter \"fc.weight\" is f8e4m3 [2] on cpu; expected f64"));
  p.set_data(Tensor::zeros({2}));
  p.set_grad(Tensor::zeros({3}));
  CHECK_THROWS_WITH(optimizer.step(),
                    "SGD: the gradient of \"fc.weight\", f32 [3] on cpu, does not "
                    "fit the parameter, f32 [2] on cpu");
}

}  // namespace
}  // namespace weft::optim
