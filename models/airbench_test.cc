#include "models/airbench.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "autograd/backward.h"
#include "autograd/random.h"
#include "models/registry.h"
#include "nn/loss.h"
#include "optim/sgd.h"

namespace weft::models {
namespace {

TEST_CASE("airbench has the published number of parameters and operations") {
  const auto model = make_model("airbench");
  // 24 biases of the whitening and its 24 filters of 12, six convolutions, the biases (and the
  // fixed scales) of six norms, and the head.
  const int64_t convolutions =
      9 * (24 * 64 + 64 * 64 + 64 * 256 + 256 * 256 + 256 * 256 + 256 * 256);
  CHECK(model->num_parameters() == 24 * 12 + 24 + convolutions + 2 * (2 * 64 + 4 * 256) + 2560);
  const double macs = 31.0 * 31 * 24 * 12 +
                      9 * (31.0 * 31 * 24 * 64 + 15.0 * 15 * 64 * 64 + 15.0 * 15 * 64 * 256 +
                           7.0 * 7 * 256 * 256 * 2 + 3.0 * 3 * 256 * 256) +
                      2560;
  CHECK(model->forward_matmul_flops() == 2 * macs);
}

TEST_CASE("the first layer whitens the patches of the images it is adapted to") {
  manual_seed(83);
  Airbench model({.image_size = 9, .classes = 4, .widths = {8, 12, 16}});
  // Neighbours are alike, and channels are of different sizes.
  const Tensor noise = ops::randn({64, 3, 9, 9});
  const Tensor images = noise + ops::randn({64, 1, 1, 1}) +
                        Tensor::from(std::vector<float>{0, 0.5F, 2}, {1, 3, 1, 1}) * noise;
  model.adapt_to(images);
  CHECK(!model.whiten.weight.requires_grad());

  const NoGrad guard;
  const Tensor y = ops::conv2d(images, model.whiten.weight, Tensor());  // [64, 24, 8, 8]
  const Tensor rows = ops::reshape(ops::permute(y, {1, 0, 2, 3}), {24, -1});
  const Tensor covariance =
      ops::matmul(rows, ops::transpose(rows, 0, 1)) * (1.0 / static_cast<double>(rows.size(1)));
  const std::vector<double> values = covariance.to_vector();
  for (int64_t i = 0; i < 24; ++i) {
    for (int64_t j = 0; j < 24; ++j) {
      const double sign = i < 12 == j < 12 ? 1 : -1;
      CAPTURE(i, j);
      CHECK(values[i * 24 + j] == Approx(i % 12 == j % 12 ? sign : 0).margin(5e-3));
    }
  }
}

TEST_CASE("airbench learns, and says what others have to know of it") {
  manual_seed(89);
  const auto model = make_model("airbench", {.image_size = 12, .classes = 4});
  const Tensor images = ops::randn({8, 3, 12, 12});
  model->structure().adapt_to(images);
  const Tensor targets = Tensor::from(std::vector<int64_t>{0, 1, 2, 3, 0, 1, 2, 3}, {8});
  NamedTensors trained = model->named_parameters();
  std::erase_if(trained, [](const auto& named) { return !named.second.requires_grad(); });
  optim::SGD optimizer(trained, {.lr = 0.1, .momentum = 0.85, .nesterov = true});
  double loss_value = 0;
  for (int step = 0; step < 30; ++step) {
    optimizer.zero_grad();
    const Tensor loss = nn::cross_entropy((*model)(images), targets);
    loss_value = loss.item();
    backward(loss);
    for (const auto& [name, parameter] : trained) {
      CAPTURE(name);
      REQUIRE(parameter.grad().defined());
    }
    optimizer.step();
  }
  CHECK(loss_value < 0.1);

  const NoGrad guard;
  const nn::ModelStructure structure = model->structure();
  Tensor x = images;
  for (const nn::Segment& segment : structure.segments) x = segment.forward(x);
  CHECK(x.shape() == Shape{8, 4});
  for (const auto& [name, parameter] : model->named_parameters()) {
    CAPTURE(name);
    CHECK(std::ranges::count_if(structure.segments, [&, &n = name](const nn::Segment& segment) {
            return nn::owns(segment, n);
          }) == 1);
  }
  CHECK(structure.replica()->num_parameters() == model->num_parameters());
  CHECK_THROWS_WITH(make_model("airbench", {.image_size = 8}),
                    "Airbench: images of 8 pixels, expected 9 at least");
}

}  // namespace
}  // namespace weft::models
