#include "nn/rotary.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "nn/rms_norm.h"

namespace weft::nn {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("rotary positions turn pairs of the two halves by their frequencies") {
  const RotaryPositions rotary(8, 4, 100);
  const Tensor x = Tensor::from(std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8}, {2, 4});
  const std::vector<double> y = rotary.rotate(x, 3).to_vector();
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t i = 0; i < 2; ++i) {
      const double angle = (3.0 + row) * (i == 0 ? 1 : 0.1);
      const double a = 4.0 * row + 1 + i, b = a + 2;
      // Sines, cosines and their arguments at 2^-53 each, of numbers below 2^4.
      CHECK(y[4 * row + i] ==
            Approx(a * std::cos(angle) - b * std::sin(angle)).margin(8 * 0x1p-49).epsilon(0));
      CHECK(y[4 * row + i + 2] ==
            Approx(b * std::cos(angle) + a * std::sin(angle)).margin(8 * 0x1p-49).epsilon(0));
    }
  }
}

TEST_CASE("products of rotated rows depend on the distance alone") {
  manual_seed(1);
  const RotaryPositions rotary(64, 16);
  const Tensor q = ops::randn({1, 16}, DType::f64), k = ops::randn({1, 16}, DType::f64);
  const auto product = [&](int64_t at_q, int64_t at_k) {
    return ops::sum(ops::mul(rotary.rotate(q, at_q), rotary.rotate(k, at_k))).item();
  };
  // Angles below 64 are rounded at 2^-47, which turns 16 products of numbers below 4 as far.
  CHECK(std::abs(product(20, 5) - product(60, 45)) < 16 * 16 * 0x1p-46);
  CHECK(std::abs(product(20, 5) - product(20, 6)) > 1e-3);
}

TEST_CASE("rotation has the dtype of its input, and a gradient") {
  manual_seed(2);
  const RotaryPositions rotary(5, 6);
  const Tensor x = ops::randn({2, 3, 4, 6}, DType::f64);
  CHECK_NOTHROW(gradcheck([&](const Tensors& in) { return rotary.rotate(in[0], 1); },
                          {detach(x).set_requires_grad(true)}));
  const Tensor narrow = ops::cast(x, DType::bf16), y = rotary.rotate(narrow, 1);
  CHECK(y.dtype() == DType::bf16);
  const Tensor wide = rotary.rotate(ops::cast(narrow, DType::f32), 1);
  CHECK(ops::cast(wide, DType::bf16).to_vector() == y.to_vector());
}

TEST_CASE("rotary positions name what does not fit") {
  CHECK_THROWS_WITH(RotaryPositions(8, 3),
                    Contains("an even width, got 8 positions, the width 3 and the base 10000"));
  const RotaryPositions rotary(8, 4);
  CHECK_THROWS_WITH(
      rotary.rotate(Tensor::zeros({2, 5, 4}), 4),
      Contains("rows of 4 at positions below 8, got f32 [2, 5, 4] on cpu from position 4"));
  CHECK_THROWS_WITH(rotary.rotate(Tensor::zeros({5, 6})), Contains("rows of 4"));
}

TEST_CASE("RmsNorm is ops::rms_norm with its weight") {
  RmsNorm norm(3, 0.5);
  const Tensor x = Tensor::from(std::vector<float>{1, 2, 3, -1, 0, 4}, {2, 3});
  CHECK(norm.named_parameters().size() == 1);
  CHECK(norm(x).to_vector() == ops::rms_norm(x, Tensor::full({3}, 1), 0.5).to_vector());
  norm.weight.data<float>()[2] = 2;
  CHECK(norm(x).to_vector()[2] == 2 * ops::rms_norm(x, {}, 0.5).to_vector()[2]);
}

}  // namespace
}  // namespace weft::nn
