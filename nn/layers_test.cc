#include "nn/layers.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "autograd/random.h"
#include "nn/init.h"
#include "nn/structure.h"

namespace weft::nn {
namespace {

double largest(const Tensor& x) {
  double result = 0;
  for (double v : x.to_vector()) result = std::max(result, std::abs(v));
  return result;
}

Tensor counting(const Shape& shape) {
  std::vector<float> values(numel(shape));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  return Tensor::from(values, shape);
}

TEST_CASE("what stands in for a layer does so in forward(), too, and may call it itself") {
  manual_seed(3);
  Linear linear(4, 4);
  DropPath path(0.5);
  MultiheadAttention attention(4, 2);
  const Tensor x = Tensor::full({2, 3, 4}, 1);
  for (Module* layer : std::initializer_list<Module*>{&linear, &path, &attention}) {
    layer->eval();
    const std::vector<double> own = layer->forward(x).to_vector();
    layer->set_stand_in([layer](const Tensor& in) { return layer->forward(in) + 1.0; });
    CHECK(layer->forward(x).to_vector() == (*layer)(x).to_vector());
    CHECK(layer->forward(x).to_vector() != own);
    layer->set_stand_in({});
    CHECK(layer->forward(x).to_vector() == own);
  }
}

TEST_CASE("Linear is x W^T + b") {
  Linear layer(2, 3);
  CHECK(layer.weight.shape() == Shape{3, 2});
  CHECK(largest(layer.weight) <= 1 / std::sqrt(2.0));
  CHECK(largest(layer.bias) <= 1 / std::sqrt(2.0));
  layer.load_state_dict({{"weight", counting({3, 2})}, {"bias", counting({3})}});
  const Tensor x = Tensor::from(std::vector<float>{1, 10}, {1, 2});
  CHECK(layer(x).to_vector() == std::vector<double>{10, 33, 56});
  CHECK_FALSE(Linear(2, 3, false).bias.defined());
  CHECK_THROWS_WITH(Linear(0, 3), "Linear: in must be positive, got 0");
}

TEST_CASE("LayerNorm normalises rows and adds a residual on request") {
  LayerNorm layer(2, 0);
  const Tensor x = Tensor::from(std::vector<float>{1, 3, -2, 6}, {2, 2});
  CHECK(layer(x).to_vector() == std::vector<double>{-1, 1, -1, 1});
  const auto [s, y] = layer.forward_add(x, x);
  CHECK(s.to_vector() == std::vector<double>{2, 6, -4, 12});
  CHECK(y.to_vector() == std::vector<double>{-1, 1, -1, 1});
}

TEST_CASE("BatchNorm2d uses the batch in training and its running statistics in evaluation") {
  BatchNorm2d layer(1, 0);
  const Tensor x = Tensor::from(std::vector<float>{1, 3, 1, 3}, {2, 1, 1, 2});
  CHECK(layer(x).to_vector() == std::vector<double>{-1, 1, -1, 1});
  // running = 0.9 running + 0.1 batch: mean 2, unbiased variance 4/3.
  CHECK(layer.running_mean.item() == Approx(0.2).epsilon(1e-6));
  CHECK(layer.running_var.item() == Approx(0.9 + 0.1 * 4 / 3).epsilon(1e-6));
  CHECK(layer.num_batches_tracked.item() == 1);
  layer.eval();
  init::constant(layer.running_mean, 1);
  init::constant(layer.running_var, 4);
  CHECK(layer(x).to_vector() == std::vector<double>{0, 1, 0, 1});
  CHECK(layer.num_batches_tracked.item() == 1);
  CHECK_THROWS_WITH(layer(Tensor::zeros({2, 1})), Catch::Contains("BatchNorm2d: expected images"));
}

TEST_CASE("a batch norm's state that counts no batches is one of PyTorch before 0.4.1") {
  Sequential model;
  auto& layer = model.append<BatchNorm2d>(1);
  layer(Tensor::zeros({1, 1, 1, 2}));
  REQUIRE(layer.num_batches_tracked.item() == 1);
  const Tensor one = Tensor::full({1}, 3);
  NamedTensors state = {
      {"0.weight", one}, {"0.bias", one}, {"0.running_mean", one}, {"0.running_var", one}};
  model.load_state_dict(state);
  CHECK(layer.running_var.item() == 3);
  CHECK(layer.num_batches_tracked.item() == 0);
  state.pop_back();
  CHECK_THROWS_WITH(model.load_state_dict(state), Catch::Contains("missing keys: 0.running_var"));
  state.resize(2);  // nothing of its statistics
  CHECK_THROWS_WITH(model.load_state_dict(state),
                    Catch::Contains("0.running_var, 0.num_batches_tracked"));
}

TEST_CASE("who leads a model's states gets older ones as the model has them") {
  Sequential model;
  model.append<BatchNorm2d>(1);
  const Tensor one = Tensor::full({1}, 3);
  NamedTensors taken;
  model.set_route({.load_state_dict = [&](const NamedTensors& state, const LoadOptions&) {
    taken = state;
    return LoadResult{};
  }});
  model.load_state_dict(
      {{"0.weight", one}, {"0.bias", one}, {"0.running_mean", one}, {"0.running_var", one}});
  REQUIRE(taken.size() == 5);
  CHECK(taken.back().first == "0.num_batches_tracked");
}

TEST_CASE("Conv2d slides its kernel") {
  Conv2d layer(2, 4, {1, 3}, {.stride = {1, 2}, .padding = {0, 1}, .groups = 2});
  CHECK(layer.weight.shape() == Shape{4, 1, 1, 3});
  CHECK(largest(layer.weight) <= 1 / std::sqrt(3.0));
  CHECK(layer(Tensor::zeros({1, 2, 5, 7})).shape() == Shape{1, 4, 5, 4});

  Conv2d box(1, 1, 2, {}, false);
  init::ones(box.weight);
  CHECK(box(counting({1, 1, 3, 3})).to_vector() == std::vector<double>{8, 12, 20, 24});
  CHECK_FALSE(box.bias.defined());
  CHECK_THROWS_WITH(Conv2d(3, 4, 1, {.groups = 2}),
                    "Conv2d: 2 groups do not divide 3 and 4 channels");
}

TEST_CASE("Embedding looks rows up") {
  Embedding layer(3, 2);
  layer.load_state_dict({{"weight", counting({3, 2})}});
  const Tensor indices = Tensor::from(std::vector<int64_t>{2, 0}, {2});
  CHECK(layer(indices).to_vector() == std::vector<double>{4, 5, 0, 1});
}

TEST_CASE("pooling: windows lie side by side unless a stride is given") {
  const Tensor x = counting({1, 1, 4, 4});
  CHECK(MaxPool2d(2)(x).to_vector() == std::vector<double>{5, 7, 13, 15});
  CHECK(AvgPool2d(2)(x).to_vector() == std::vector<double>{2.5, 4.5, 10.5, 12.5});
  CHECK(MaxPool2d(3, 2, 1)(x).to_vector() == std::vector<double>{5, 7, 13, 15});
  CHECK(AvgPool2d(3, 3, 1, false)(x).to_vector() == std::vector<double>{2.5, 4.5, 10.5, 12.5});
}

TEST_CASE("Dropout and DropPath act in training only") {
  manual_seed(21);
  const Tensor x = ops::ones({64, 3, 2});
  Dropout dropout(0.25);
  int64_t zeros = 0;
  for (double v : dropout(x).to_vector()) {
    CHECK((v == 0 || v == Approx(4.0 / 3).epsilon(1e-6)));
    zeros += v == 0;
  }
  CHECK(zeros > 50);
  CHECK(zeros < 150);

  DropPath path(0.5);
  const std::vector<double> y = path(x).to_vector();
  int64_t dropped = 0;
  for (size_t sample = 0; sample < 64; ++sample) {
    const double first = y[sample * 6];
    CHECK((first == 0 || first == 2));
    CHECK(std::all_of(&y[sample * 6], &y[sample * 6] + 6, [&](double v) { return v == first; }));
    dropped += first == 0;
  }
  CHECK(dropped > 16);
  CHECK(dropped < 48);
  CHECK(path.eval()(x).is_same(x));
  CHECK(dropout.eval()(x).is_same(x));
  CHECK_THROWS_WITH(DropPath(1.5), "DropPath: the probability must lie in [0, 1], got 1.5");
}

TEST_CASE("Sequential applies its children in order") {
  Sequential net(std::make_unique<Linear>(4, 3), std::make_unique<ReLU>());
  net.append<Linear>(3, 2, false);
  net.add<Flatten>("last", 0);
  CHECK(net.size() == 4);
  CHECK(net.named_parameters()[2].first == "2.weight");
  CHECK(net(Tensor::zeros({5, 4})).shape() == Shape{10});
  CHECK(&net[2] == net.named_modules()[3].second);
  CHECK_THROWS_WITH(net[4], "Sequential: no child 4 of 4");
}

TEST_CASE("activations and shapes") {
  const Tensor x = Tensor::from(std::vector<float>{-1, 0, 2}, {3});
  CHECK(ReLU()(x).to_vector() == std::vector<double>{0, 0, 2});
  CHECK(Identity()(x).is_same(x));
  CHECK(GELU()(x).to_vector()[2] == Approx(2 * 0.5 * (1 + std::erf(std::sqrt(2.0)))));
  CHECK(SiLU()(x).to_vector()[2] == Approx(2 / (1 + std::exp(-2.0))));
  CHECK(Tanh()(x).to_vector()[2] == Approx(std::tanh(2.0)));
  CHECK(Flatten()(Tensor::zeros({2, 3, 4})).shape() == Shape{2, 12});
}

TEST_CASE("a sequence says that it is a chain, and a module that says nothing has no structure") {
  Sequential chain;
  chain.append<Linear>(3, 4);
  chain.append<ReLU>();
  const ModelStructure structure = chain.structure();
  REQUIRE(structure.segments.size() == 2);
  CHECK(owns(structure.segments[0], "0.weight"));
  CHECK_FALSE(owns(structure.segments[0], "01.weight"));
  CHECK_FALSE(owns(structure.segments[1], "0.weight"));
  CHECK(wrap_modules<Linear, LayerNorm>()("0", chain[0]));
  CHECK_FALSE(wrap_modules<Linear, LayerNorm>()("1", chain[1]));
  const ModelStructure none = chain[0].structure();
  CHECK(none.segments.empty());
  CHECK(!none.units);
}

}  // namespace
}  // namespace weft::nn
