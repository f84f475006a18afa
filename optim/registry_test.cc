#include "optim/registry.h"

#include <catch2/catch.hpp>

#include "optim/adam.h"
#include "optim/optimizer_state.h"
#include "optim/sgd.h"

namespace weft::optim {
namespace {

TEST_CASE("unknown optimizers and options are named") {
  CHECK_THROWS_WITH(make_optimizer("adamax", Tensors()),
                    "unknown optimizer \"adamax\"; known are adamw, adam, sgd, lars, lamb, muon; "
                    "did you mean \"adamw\"?");
  CHECK_THROWS_WITH(make_optimizer("lion", Tensors()),
                    "unknown optimizer \"lion\"; known are adamw, adam, sgd, lars, lamb, muon");
  CHECK_THROWS_WITH(make_optimizer("adamw", Tensors(), {{"momentum", 0.9}}),
                    "AdamW: unknown option \"momentum\"");
  CHECK_THROWS_WITH(make_optimizer("adamw", Tensors(), {{"weight-decya", 0.1}}),
                    "AdamW: unknown option \"weight-decya\"; did you mean \"weight_decay\"?");
}

TEST_CASE("an optimizer says what it can be told, and how much state it keeps") {
  CHECK(optimizer_options("adam") == AdamOptions().options());
  CHECK(optimizer_options("adamw")["weight_decay"] == 0.01);
  CHECK(optimizer_options("sgd").contains("nesterov"));
  CHECK(state_tensors("adamw") == 2);
  CHECK(state_tensors("sgd") == 0);
  CHECK(state_tensors("sgd", {{"momentum", 0.9}}) == 1);
}

TEST_CASE("optimizers by name are those of their classes") {
  const auto step = [](auto&& make) {
    const Tensor w = Tensor::from(std::vector<double>{1, -2, 3}, {3}).set_requires_grad(true);
    const std::unique_ptr<Optimizer> optimizer = make(NamedTensors{{"w", w}});
    for (int i = 0; i < 3; ++i) {
      w.set_grad(Tensor::from(std::vector<double>{0.1 * i, 0.7, -0.3}, {3}));
      optimizer->step();
    }
    return std::pair(w.to_vector(), optimizer->state_dict().groups);
  };
  CHECK(step([](const NamedTensors& w) {
          return make_optimizer("adamw", w, {{"lr", 0.1}, {"weight_decay", 0.2}});
        }) == step([](const NamedTensors& w) {
          return std::make_unique<AdamW>(w, AdamWOptions{.lr = 0.1, .weight_decay = 0.2});
        }));
  CHECK(step([](const NamedTensors& w) {
          return make_optimizer("sgd", w, {{"lr", 0.1}, {"momentum", 0.9}, {"nesterov", 1}});
        }) == step([](const NamedTensors& w) {
          return std::make_unique<SGD>(w, SgdOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true});
        }));
}

TEST_CASE("options are for groups that have none of their own") {
  const Tensor a = Tensor::zeros({1}), b = Tensor::zeros({1});
  const auto optimizer = make_optimizer(
      "adam", {{.parameters = {{"a", a}}}, {.parameters = {{"b", b}}, .options = {{"lr", 0.25}}}},
      {{"lr", 0.5}});
  CHECK(optimizer->groups()[0]["lr"] == 0.5);
  CHECK(optimizer->groups()[1]["lr"] == 0.25);
}

}  // namespace
}  // namespace weft::optim
