#include "models/vgg.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "autograd/backward.h"
#include "autograd/random.h"
#include "models/registry.h"
#include "nn/loss.h"
#include "nn/meta.h"
#include "optim/adam.h"

namespace weft::models {
namespace {

VggConfig small(int64_t image_size = 8) {
  return {.image_size = image_size,
          .classes = 4,
          .stages = {{8}, {12, 12}},
          .hidden = 64,
          .dropout = 0};
}

TEST_CASE("vgg11 has torchvision's parameters") {
  const nn::MetaScope no_memory;
  const auto model = make_model("vgg11");
  CHECK(model->num_parameters() == 132'863'336);
  const NamedTensors state = model->state_dict();
  std::vector<std::string> names;
  for (const int layer : {0, 3, 6, 8, 11, 13, 16, 18}) {
    for (const char* tensor : {"weight", "bias"}) {
      names.push_back("features." + std::to_string(layer) + "." + tensor);
    }
  }
  for (const int layer : {0, 3, 6}) {
    for (const char* tensor : {"weight", "bias"}) {
      names.push_back("classifier." + std::to_string(layer) + "." + tensor);
    }
  }
  REQUIRE(state.size() == names.size());
  for (size_t i = 0; i < names.size(); ++i) CHECK(state[i].first == names[i]);
  CHECK(state[6].second.shape() == Shape{256, 256, 3, 3});
  CHECK(state[16].second.shape() == Shape{4096, 25088});
  CHECK(state[20].second.shape() == Shape{1000, 4096});
  CHECK(model->forward_matmul_flops() == 2 * 7'609'090'048.0);
}

TEST_CASE("a small VGG learns, and every parameter has a gradient") {
  manual_seed(67);
  Vgg model(small());
  const Tensor images = ops::randn({8, 3, 8, 8});
  const Tensor targets = Tensor::from(std::vector<int64_t>{0, 1, 2, 3, 0, 1, 2, 3}, {8});
  optim::AdamW optimizer(model.named_parameters(), {.lr = 3e-3});
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    const Tensor loss = nn::cross_entropy(model(images), targets);
    backward(loss);
    for (const Tensor& parameter : model.parameters()) REQUIRE(parameter.grad().defined());
    optimizer.step();
  }
  const NoGrad guard;
  model.eval();
  CHECK(nn::cross_entropy(model(images), targets).item() < 0.1);
}

TEST_CASE("a VGG's segments are its forward, and own each parameter once") {
  manual_seed(71);
  Vgg model(small(11));  // the maps' side, 2, is pooled up to 7
  model.eval();
  const NoGrad guard;
  const Tensor images = ops::randn({2, 3, 11, 11});
  const nn::ModelStructure structure = model.structure();
  Tensor x = images;
  for (const nn::Segment& segment : structure.segments) x = segment.forward(x);
  CHECK(x.to_vector() == model(images).to_vector());
  for (const auto& [name, parameter] : model.named_parameters()) {
    CAPTURE(name);
    CHECK(std::ranges::count_if(structure.segments, [&, &n = name](const nn::Segment& segment) {
            return nn::owns(segment, n);
          }) == 1);
  }
  CHECK(structure.head->weight.shape() == Shape{4, 64});
  CHECK(structure.replica()->num_parameters() == model.num_parameters());
}

TEST_CASE("images that VGG's poolings leave nothing of are refused") {
  CHECK_THROWS_WITH(make_model("vgg11", {.image_size = 31}),
                    "Vgg: images of 31 pixels, 5 poolings leave nothing");
  Vgg model(small());
  CHECK_THROWS_WITH(model(Tensor::zeros({1, 3, 9, 9})),
                    Catch::Contains("Vgg: expected images [N, 3, 8, 8]"));
  CHECK_THROWS_WITH(make_model("vgg11", {.dropout = 0.1}), "model vgg11 has no option \"dropout\"");
}

}  // namespace
}  // namespace weft::models
