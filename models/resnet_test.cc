#include "models/resnet.h"

#include <catch2/catch.hpp>

#include "autograd/backward.h"
#include "autograd/random.h"
#include "models/registry.h"
#include "nn/loss.h"
#include "optim/sgd.h"

namespace weft::models {
namespace {

TEST_CASE("resnet50 has torchvision's parameters") {
  const auto model = make_model("resnet50");
  CHECK(model->num_parameters() == 25'557'032);
  CHECK(model->parameters().size() == 161);
  const NamedTensors state = model->state_dict();
  CHECK(state.size() == 320);
  CHECK(state[0].first == "conv1.weight");
  CHECK(state[5].first == "bn1.num_batches_tracked");
  CHECK(state[6].first == "layer1.0.conv1.weight");
  CHECK(state[24].first == "layer1.0.downsample.0.weight");
  CHECK(state[25].first == "layer1.0.downsample.1.weight");
  CHECK(state[318].first == "fc.weight");
  CHECK(model->forward_matmul_flops() == 2 * 4'089'184'256.0);
}

TEST_CASE("resnet8 has its 78,042 parameters and runs at any size") {
  manual_seed(61);
  const auto model = make_model("resnet8", {.image_size = 20, .classes = 4});
  CHECK(make_model("resnet8")->num_parameters() == 78'042);
  // 3x3 stem; the strides halve 20 to 10 to 5.
  const double macs = 400.0 * 27 * 16 + 2 * 400.0 * 144 * 16 + 100.0 * (16 + 144 + 288) * 32 +
                      25.0 * (32 + 288 + 576) * 64 + 64 * 4;
  CHECK(model->forward_matmul_flops() == 2 * macs);
  const Tensor images = ops::randn({8, 3, 20, 20});
  const Tensor targets = Tensor::from(std::vector<int64_t>{0, 1, 2, 3, 0, 1, 2, 3}, {8});
  optim::SGD optimizer(model->named_parameters(), {.lr = 0.05, .momentum = 0.9});
  double loss_value = 0;
  for (int step = 0; step < 30; ++step) {
    optimizer.zero_grad();
    const Tensor loss = nn::cross_entropy((*model)(images), targets);
    loss_value = loss.item();
    backward(loss);
    for (const Tensor& parameter : model->parameters()) REQUIRE(parameter.grad().defined());
    optimizer.step();
  }
  CHECK(loss_value < 0.1);
  const NoGrad guard;
  model->eval();
  CHECK((*model)(images).shape() == Shape{8, 4});
}

TEST_CASE("stages and widths must match") {
  ResNetConfig config = ResNetConfig::resnet8();
  config.blocks = {1, 1};
  CHECK_THROWS_WITH(ResNet(config), "ResNet: 2 stages of blocks, but 3 widths");
}

}  // namespace
}  // namespace weft::models
