#include "models/compact.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/random.h"
#include "models/registry.h"
#include "nn/init.h"
#include "nn/loss.h"
#include "optim/adam.h"

namespace weft::models {
namespace {

TEST_CASE("cct: two stages, two layers of width 128, 350,283 parameters") {
  const auto model = make_model("cct");
  CHECK(model->num_parameters() == 350'283);
  CHECK(model->forward_matmul_flops() == 79'071'744);
  CHECK(model->named_parameters()[0].first == "stem.0.weight");
  CHECK(model->named_parameters()[1].first == "stem.3.weight");
  CHECK(model->named_parameters()[2].first == "encoder.pos_embedding");
  CHECK(model->state_dict().back().first == "head.bias");
  const NoGrad guard;
  model->eval();
  CHECK((*model)(Tensor::zeros({2, 3, 32, 32})).shape() == Shape{2, 10});
}

TEST_CASE("cct_2_3x3: three stages with batch norm, 16 tokens of width 192, 897,035 parameters") {
  const auto model = make_model("cct_2_3x3");
  CHECK(model->num_parameters() == 897'035);
  CHECK(model->named_parameters()[1].first == "stem.2.weight");  // of the batch norm
  CHECK(model->named_parameters()[3].first == "stem.4.weight");
  // The products in forward: stages of 32, 16 and 8 pixels a side, then the encoder on 4 x 4
  // tokens.
  const int64_t stem = 32 * 32 * 27 * 64 + 16 * 16 * 64 * 9 * 128 + 8 * 8 * 128 * 9 * 192;
  const int64_t layer = 16 * 192 * (4 * 192 + 2 * 384) + 2 * 16 * 16 * 192;
  CHECK(model->forward_matmul_flops() == 2 * (stem + 2 * layer + 2 * 16 * 192 + 192 * 10));
  const NoGrad guard;
  model->eval();
  CHECK((*model)(Tensor::zeros({2, 3, 32, 32})).shape() == Shape{2, 10});
}

// Hassani et al., table 1: ViT-Lite-7/4 3.72 M, CCT-7/3x1 3.76 M parameters; theirs have no bias in
// the fused projection: 3 x 256 less per layer.
TEST_CASE("the published sizes") {
  CHECK(make_model("vit_lite_7_4")->num_parameters() - 7 * 768 == 3'716'874);
  CHECK(make_model("cct_7_3x1")->num_parameters() - 7 * 768 == 3'760'139);
  CHECK(make_model("cct_6_3x1")->num_parameters() - 6 * 768 == 3'233'803);
}

TEST_CASE("every parameter of every variant receives a gradient") {
  manual_seed(51);
  const auto name = GENERATE(std::string("vit_lite"), std::string("cct"), std::string("cct_2_3x3"));
  const bool class_token = GENERATE(false, true);
  const auto model = make_model(name, {.image_size = 16,
                                       .classes = 4,
                                       .layers = 2,
                                       .heads = 2,
                                       .width = 16,
                                       .hidden = 32,
                                       .class_token = class_token,
                                       .dropout = 0.1,
                                       .attention_dropout = 0.1,
                                       .drop_path = 0.1});
  const DType precision = GENERATE(DType::f32, DType::bf16);
  const Autocast mode(precision);
  const Tensor logits = (*model)(ops::randn({3, 3, 16, 16}));
  CHECK(logits.shape() == Shape{3, 4});
  backward(nn::cross_entropy(logits, Tensor::from(std::vector<int64_t>{0, 1, 2}, {3})));
  for (const auto& [parameter, tensor] : model->named_parameters()) {
    CAPTURE(parameter);
    REQUIRE(tensor.grad().defined());
    CHECK(tensor.grad().dtype() == DType::f32);
    // A score's bias moves all of softmax's arguments alike: its gradient is zero.
    if (parameter == "attention_pool.bias") continue;
    CHECK(ops::max(ops::abs(tensor.grad())).item() > 0);
  }
  // A batch norm has three buffers.
  CHECK(model->state_dict().size() == model->parameters().size() + (name == "cct_2_3x3" ? 9 : 0));
}

TEST_CASE("sequence pooling with equal scores is the mean of the tokens") {
  manual_seed(52);
  CompactConfig config;
  config.image_size = 8;
  config.encoder = {.layers = 1, .heads = 2, .width = 8, .hidden = 16};
  CompactTransformer model(config);
  model.eval();
  model.to(DType::f64);
  nn::init::zeros(model.attention_pool->weight);
  const NoGrad guard;
  const Tensor images = ops::randn({2, 3, 8, 8}, DType::f64);
  const Tensor tokens = model.encoder(tokens_of(model.stem(images)));
  const std::vector<double> expected = model.head(ops::mean(tokens, {1})).to_vector();
  const std::vector<double> got = model(images).to_vector();
  for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).epsilon(1e-12));
}

TEST_CASE("stochastic depth grows linearly with the layer") {
  const auto model = make_model("vit_lite", {.layers = 5, .drop_path = 0.2});
  std::vector<double> rates;
  for (const auto& [name, module] : model->named_modules()) {
    if (auto* path = dynamic_cast<nn::DropPath*>(module)) rates.push_back(path->p);
  }
  REQUIRE(rates.size() == 5);
  for (int i = 0; i < 5; ++i) CHECK(rates[i] == Approx(0.05 * i));
  // timm's linspace(0, p, 1) is {0}, too.
  const auto single = make_model("vit_lite", {.layers = 1, .drop_path = 0.2});
  for (const auto& [name, module] : single->named_modules()) {
    if (auto* path = dynamic_cast<nn::DropPath*>(module)) CHECK(path->p == 0);
  }
}

TEST_CASE("with every path dropped a layer of an encoder gives what it was given") {
  manual_seed(54);
  const EncoderConfig config = {.layers = 2, .heads = 2, .width = 8, .hidden = 16, .drop_path = 1};
  Encoder encoder(config, 5);
  const NoGrad guard;
  const Tensor x = ops::randn({2, 5, 8});
  auto& first = dynamic_cast<EncoderBlock&>(encoder.layers[0]);
  const Tensor expected = encoder.ln(first(x + encoder.pos_embedding));
  CHECK(encoder(x).to_vector() == expected.to_vector());
  encoder.eval();
  CHECK(encoder(x).to_vector() != expected.to_vector());
}

TEST_CASE("a small cct learns 16 random images by heart") {
  manual_seed(53);
  CompactConfig config;
  config.image_size = 16;
  config.stages = {8, 32};
  config.encoder = {.layers = 1, .heads = 2, .width = 32, .hidden = 64};
  CompactTransformer model(config);
  const Tensor images = ops::randn({16, 3, 16, 16});
  std::vector<int64_t> labels(16);
  for (int i = 0; i < 16; ++i) labels[i] = i % 10;
  const Tensor targets = Tensor::from(labels, {16});
  optim::AdamW optimizer(model.named_parameters(), {.lr = 3e-3});
  double loss_value = 0;
  for (int step = 0; step < 80; ++step) {
    optimizer.zero_grad();
    const Tensor loss = nn::cross_entropy(model(images), targets);
    loss_value = loss.item();
    backward(loss);
    optimizer.step();
  }
  CHECK(loss_value < 0.05);
}

TEST_CASE("a last stage that is not the encoder's width is refused") {
  CompactConfig config;
  config.stages = {64};
  CHECK_THROWS_WITH(CompactTransformer(config),
                    "CompactTransformer: the last stage must have the width of the encoder, 128, "
                    "got 64");
}

}  // namespace
}  // namespace weft::models
