#include "nn/loss.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "autograd/autocast.h"
#include "autograd/backward.h"

namespace weft::nn {
namespace {

Tensor leaf(const std::vector<double>& values) {
  return Tensor::from(values, {static_cast<int64_t>(values.size())}).set_requires_grad(true);
}

TEST_CASE("mse and l1: values and gradients, exact on small integers") {
  const Tensor y = Tensor::from(std::vector<double>{1, 1, -2, 0}, {4});
  const Tensor x = leaf({3, 1, -1, -4});
  CHECK(mse_loss(x, y).item() == 21.0 / 4);
  CHECK(mse_loss(x, y, Reduction::kSum).item() == 21);
  CHECK(mse_loss(x, y, Reduction::kNone).to_vector() == std::vector<double>{4, 0, 1, 16});
  CHECK(l1_loss(x, y).item() == 7.0 / 4);
  CHECK(l1_loss(x, y, Reduction::kSum).item() == 7);
  backward(mse_loss(x, y));
  CHECK(x.grad().to_vector() == std::vector<double>{1, 0, 0.5, -2});
  x.set_grad({});
  backward(l1_loss(x, y));
  CHECK(x.grad().to_vector() == std::vector<double>{0.25, 0, 0.25, -0.25});
  CHECK_THROWS_WITH(mse_loss(x, Tensor::zeros({3})),
                    "mse_loss: f64 [4] on cpu and target f32 [3] on cpu differ in shape");
}

// binary_cross_entropy_with_logits of PyTorch 1.13 in f64.
TEST_CASE("bce_with_logits equals PyTorch's numbers, at the extremes too") {
  const Tensor y = Tensor::from(std::vector<double>{0, 1, 0.25, 0.5, 1, 0, 1}, {7});
  const Tensor x = leaf({-100, -3.5, -0.25, 0, 0.75, 20, 100});
  const std::vector<double> losses = {0,
                                      3.5297504182726205,
                                      0.6384394198788437,
                                      0.6931471805599453,
                                      0.3868710061149,
                                      20.000000002061153,
                                      0};
  const std::vector<double> gradients = {3.7200759760208356e-44,
                                         -0.9706877692486436,
                                         0.18782349911420193,
                                         0,
                                         -0.320821300824607,
                                         0.9999999979388463,
                                         0};
  const std::vector<double> got = bce_with_logits(x, y, Reduction::kNone).to_vector();
  backward(bce_with_logits(x, y, Reduction::kSum));
  const std::vector<double> got_gradients = x.grad().to_vector();
  for (size_t i = 0; i < losses.size(); ++i) {
    CHECK(got[i] == Approx(losses[i]).epsilon(4e-15).margin(1e-15));
    CHECK(got_gradients[i] == Approx(gradients[i]).epsilon(4e-15).margin(1e-15));
  }
}

TEST_CASE("bce_with_logits keeps its digits where the logit is sure of its target") {
  // The loss is log(1 + exp(-x)), which is exp(-x) (1 - exp(-x) / 2) as far as f64 tells.
  for (const double logit : {30.0, 40.0, 80.0}) {
    const double e = std::exp(-logit), expected = e * (1 - e / 2);
    const Tensor x = Tensor::scalar(logit, DType::f64), y = Tensor::scalar(1, DType::f64);
    CHECK(bce_with_logits(x, y).item() == Approx(expected).epsilon(1e-14));
    const Tensor narrow = ops::cast(x, DType::f32), target = ops::cast(y, DType::f32);
    CHECK(bce_with_logits(narrow, target).item() == Approx(expected).epsilon(0x1p-23));
  }
}

TEST_CASE("bce_with_logits gives gradients to targets and of gradients") {
  const Tensor x = leaf({0.5, -2}), y = leaf({0.25, 1});
  backward(bce_with_logits(x, y, Reduction::kSum));
  CHECK(y.grad().to_vector() == std::vector<double>{-0.5, 2});
  const Tensor first =
      grad({bce_with_logits(x, y, Reduction::kSum)}, {x}, {}, {.create_graph = true})[0];
  // The second derivative is sigmoid'(x) = 1 / (2 + 2 cosh x).
  const std::vector<double> second = grad({ops::sum(first)}, {x})[0].to_vector();
  CHECK(second[0] == Approx(1 / (2 + 2 * std::cosh(0.5))).epsilon(1e-14));
  CHECK(second[1] == Approx(1 / (2 + 2 * std::cosh(2.0))).epsilon(1e-14));
}

TEST_CASE("inside an Autocast narrow inputs are widened") {
  const Autocast mode(DType::bf16);
  const Tensor x = ops::cast(Tensor::from(std::vector<float>{256, 1}, {2}), DType::bf16);
  const Tensor y = Tensor::from(std::vector<float>{0, 0}, {2});
  CHECK(mse_loss(x, y, Reduction::kSum).dtype() == DType::f32);
  CHECK(mse_loss(x, y, Reduction::kSum).item() == 65537);
}

TEST_CASE("cross_entropy is the op's") {
  const Tensor logits = Tensor::zeros({3, 4}, DType::f64);
  const Tensor labels = Tensor::from(std::vector<int64_t>{0, 3, -100}, {3});
  CHECK(cross_entropy(logits, labels).item() == Approx(std::log(4.0)).epsilon(1e-15));
}

}  // namespace
}  // namespace weft::nn
