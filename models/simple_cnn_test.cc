#include "models/simple_cnn.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "autograd/backward.h"
#include "autograd/random.h"
#include "models/registry.h"
#include "nn/loss.h"
#include "optim/sgd.h"

namespace weft::models {
namespace {

TEST_CASE("simple_cnn has the tutorial's 62,006 parameters") {
  manual_seed(73);
  const auto model = make_model("simple_cnn");
  CHECK(model->num_parameters() == 62'006);
  const std::pair<const char*, Shape> table[] = {
      {"conv1.weight", {6, 3, 5, 5}},  {"conv1.bias", {6}},
      {"conv2.weight", {16, 6, 5, 5}}, {"conv2.bias", {16}},
      {"fc1.weight", {120, 400}},      {"fc1.bias", {120}},
      {"fc2.weight", {84, 120}},       {"fc2.bias", {84}},
      {"fc3.weight", {10, 84}},        {"fc3.bias", {10}}};
  const NamedTensors state = model->state_dict();
  REQUIRE(state.size() == std::size(table));
  for (size_t i = 0; i < state.size(); ++i) {
    CHECK(state[i].first == table[i].first);
    CHECK(state[i].second.shape() == table[i].second);
  }
  CHECK(model->forward_matmul_flops() == 2 * 651'720.0);
}

TEST_CASE("simple_cnn learns, and says what others have to know of it") {
  manual_seed(79);
  const auto model = make_model("simple_cnn", {.image_size = 17, .channels = 1, .classes = 4});
  const Tensor images = ops::randn({8, 1, 17, 17});
  const Tensor targets = Tensor::from(std::vector<int64_t>{0, 1, 2, 3, 0, 1, 2, 3}, {8});
  optim::SGD optimizer(model->named_parameters(), {.lr = 0.1, .momentum = 0.9});
  double loss_value = 0;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    const Tensor loss = nn::cross_entropy((*model)(images), targets);
    loss_value = loss.item();
    backward(loss);
    for (const Tensor& parameter : model->parameters()) REQUIRE(parameter.grad().defined());
    optimizer.step();
  }
  CHECK(loss_value < 0.1);

  const NoGrad guard;
  const nn::ModelStructure structure = model->structure();
  Tensor x = images;
  for (const nn::Segment& segment : structure.segments) x = segment.forward(x);
  CHECK(x.to_vector() == (*model)(images).to_vector());
  for (const auto& [name, parameter] : model->named_parameters()) {
    CAPTURE(name);
    CHECK(std::ranges::count_if(structure.segments, [&, &n = name](const nn::Segment& segment) {
            return nn::owns(segment, n);
          }) == 1);
  }
  CHECK(structure.head->weight.shape() == Shape{4, 84});
  CHECK(structure.replica()->num_parameters() == model->num_parameters());
  CHECK_THROWS_WITH(make_model("simple_cnn", {.image_size = 15}),
                    "SimpleCnn: images of 15 pixels, expected 16 at least");
}

}  // namespace
}  // namespace weft::models
