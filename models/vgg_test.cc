#include "models/vgg.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

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

/// The last steps of Murmur's hash on the numbers of elements, as numbers of that standard
/// deviation: what models/testdata/vgg.py gives torchvision's model.
void fill_by_number(const Tensor& x, uint32_t tensor, double deviation) {
  auto* const values = x.data<float>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    uint32_t bits = static_cast<uint32_t>(i) + tensor * 0x9E3779B9u;
    bits ^= bits >> 16;
    bits *= 0x85EBCA6Bu;
    bits ^= bits >> 13;
    bits *= 0xC2B2AE35u;
    bits ^= bits >> 16;
    values[i] = static_cast<float>((bits * 0x1p-32 - 0.5) * (std::sqrt(12.0) * deviation));
  }
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

TEST_CASE("vgg11 has torchvision's logits") {
  constexpr int64_t kSize = 64;  // pixels: maps of 2 x 2, which are pooled up to 7 x 7
  constexpr uint32_t kImages = 100;
  // By torchvision 0.29.2 and PyTorch 2.15.0 in f64.
  const std::vector<double> expected = {
      6.15735487,  -0.128089764, -4.25473658, -7.11639296, -6.05634624, 3.40667862,  -5.03583624,
      -2.32850676, 9.17660157,   -8.40115994, 6.03513134,  -1.61256759, -4.56584007, -7.1785182,
      -6.28854294, 4.03258622,   -5.20873807, -1.64217923, 9.10279462,  -8.1220977};
  std::unique_ptr<Classifier> model;
  {
    const nn::MetaScope no_memory;
    model = make_model("vgg11", {.image_size = kSize, .classes = 10});
  }
  nn::materialize(*model);
  model->eval();
  uint32_t number = 0;
  for (const auto& [name, tensor] : model->state_dict()) {
    const bool is_weight = tensor.dim() > 1;
    const int64_t inputs = is_weight ? tensor.numel() / tensor.size(0) : 1;
    fill_by_number(tensor, number++,
                   is_weight ? std::sqrt(2.0 / static_cast<double>(inputs)) : 0.1);
  }
  const Tensor images = Tensor::zeros({2, 3, kSize, kSize});
  fill_by_number(images, kImages, 1);
  const NoGrad guard;
  const std::vector<double> logits = (*model)(images).to_vector();
  REQUIRE(logits.size() == expected.size());
  // Sums of up to 25,088 products, over eleven layers, in f32: of the largest logit.
  for (size_t i = 0; i < logits.size(); ++i) {
    CHECK(logits[i] == Approx(expected[i]).margin(1e-5 * 9.2).epsilon(0));
  }
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
