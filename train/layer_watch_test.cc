#include "train/layer_watch.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "nn/layers.h"

using namespace weft;
using namespace weft::train;

namespace {

struct Two : nn::Module {
  Two() : a(add<nn::Linear>("a", 2, 1)), b(add<nn::Linear>("b", 1, 1)) {
    scale = parameter("scale", Tensor::from(std::vector<float>{1}, {1}));
  }
  nn::Linear &a, &b;
  Tensor scale;
};

/// The gradient of the sum of parameter * gradient is that gradient.
void set_gradient(const Tensor& parameter, const std::vector<double>& gradient) {
  backward(ops::sum(parameter *
                    ops::reshape(Tensor::from(std::vector<float>(gradient.begin(), gradient.end()),
                                              {parameter.numel()}),
                                 parameter.shape())));
}

}  // namespace

TEST_CASE("Each layer with gradients is looked at by itself") {
  Two model;
  set_gradient(model.a.weight, {3, -4});
  set_gradient(model.a.bias, {0});
  set_gradient(model.scale, {NAN});
  const auto layers = watch_layers(model, model.parameters(), find_precision("fp32"), 1);
  REQUIRE(layers.size() == 2);
  CHECK(layers[0].name == "model");
  CHECK(std::isnan(layers[0].grad_amax));
  CHECK(layers[0].weight_amax == 1);
  const LayerFigures& a = layers[1];
  CHECK(a.name == "a");
  CHECK(a.grad_amax == 4);
  CHECK(a.grad_norm == 5);
  CHECK(a.underflow == 0);
  CHECK(a.grad == std::vector<double>{3, -4, 0});
  double amax = 0;
  for (const Tensor& p : {model.a.weight, model.a.bias}) {
    for (const double w : p.to_vector()) amax = std::max(amax, std::abs(w));
  }
  CHECK(a.weight_amax == amax);
  // What no optimizer has is no part of a step.
  const auto others = watch_layers(model, {model.a.bias}, find_precision("fp32"), 1);
  REQUIRE(others.size() == 1);
  CHECK(others[0].grad == std::vector<double>{0});
}

TEST_CASE("The share that underflows is that of the precision's format, at the scale of the loss") {
  Two model;
  // Of f16 the least number is 2^-24: half of it is 0, and 0 itself does not count.
  set_gradient(model.a.weight, {0x1p-25, 0x1.8p-25});
  set_gradient(model.a.bias, {0});
  const auto share = [&](const char* precision, double loss_scale) {
    return watch_layers(model, model.parameters(), find_precision(precision), loss_scale)
        .at(0)
        .underflow;
  };
  CHECK(share("fp16", 1) == 0.5);
  CHECK(share("fp32", 1) == 0.5);
  CHECK(share("fp16", 2) == 0);
  CHECK(share("fp16", 0.5) == 1);
  CHECK(share("bf16", 1) == 0);
  CHECK(share("fp8", 1) == 0);
  model.zero_grad();
  // e5m2 reaches from its largest, 57344, to 2^-16 at one scale.
  set_gradient(model.a.weight, {57344, 0x1p-17});
  CHECK(share("fp8", 1) == 0.5);
  CHECK(share("bf16", 1) == 0);
}
