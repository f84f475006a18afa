#include "train/fine_tuning.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "models/registry.h"
#include "optim/adam.h"
#include "optim/schedule.h"
#include "optim/sgd.h"
#include "train/optimization.h"

namespace weft::train {
namespace {

std::unique_ptr<models::Classifier> tiny_vit() {
  manual_seed(3);
  return models::make_model("vit_b_16", {.image_size = 8,
                                         .classes = 3,
                                         .patch = 4,
                                         .layers = 3,
                                         .heads = 2,
                                         .width = 8,
                                         .hidden = 16});
}

std::set<std::string> trained_names(const nn::Module& model) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : trained_parameters(model)) names.insert(name);
  return names;
}

TEST_CASE("patterns name parameters, modules and globs") {
  const auto model = tiny_vit();
  const size_t all = model->named_parameters().size();
  freeze(*model, {"conv_proj", "class_token", "encoder.layers.encoder_layer_[01].*"});
  const auto names = trained_names(*model);
  CHECK(names.size() == all - 2 - 1 - 2 * 12);
  CHECK(!names.count("conv_proj.weight"));
  CHECK(!names.count("encoder.layers.encoder_layer_1.mlp.0.bias"));
  CHECK(names.count("encoder.layers.encoder_layer_2.mlp.0.bias"));
  CHECK(names.count("encoder.pos_embedding"));
}

TEST_CASE("a pattern without a parameter and a model without training are refused") {
  const auto model = tiny_vit();
  const size_t all = model->named_parameters().size();
  CHECK_THROWS_WITH(freeze(*model, {"conv_proj", "encoder.layer"}),
                    "freeze: \"encoder.layer\" names no parameter of the model");
  CHECK_THROWS_WITH(freeze(*model, {"*"}), "freeze: nothing is left to train");
  CHECK(trained_names(*model).size() == all);
}

TEST_CASE("frozen parameters get no gradient and no step") {
  const auto model = tiny_vit();
  freeze(*model, {"encoder"});
  optim::AdamW optimizer(trained_parameters(*model), {.lr = 0.1});
  std::vector<std::vector<double>> before;
  for (const auto& [name, tensor] : model->state_dict()) before.push_back(tensor.to_vector());
  const Tensor target = Tensor::from(std::vector<int64_t>{0, 2}, {2});
  for (int step = 0; step < 2; ++step) {  // the head starts at zero: the input learns from step 2
    optimizer.zero_grad();
    backward(ops::cross_entropy((*model)(ops::randn({2, 3, 8, 8})), target));
    optimizer.step();
  }
  size_t i = 0;
  for (const auto& [name, tensor] : model->named_parameters()) {
    CAPTURE(name);
    const bool is_frozen = name.starts_with("encoder.");
    CHECK(tensor.grad().defined() == !is_frozen);
    CHECK((tensor.to_vector() == before[i++]) == is_frozen);
  }
}

TEST_CASE("the learning rate falls layer by layer towards the input") {
  const auto model = tiny_vit();
  const auto groups = with_layer_decay(
      optim::without_decay_of_vectors(model->named_parameters(), model->structure().embeddings),
      0.5, model->structure());
  optim::SGD optimizer(groups, {.lr = 1, .momentum = 0, .weight_decay = 0.25});
  optimizer.set_lr(0.8);
  std::map<std::string, double> rates, decays;
  size_t count = 0;
  for (const auto& group : optimizer.groups()) {
    for (const auto& [name, tensor] : group.parameters) {
      rates[name] = group["lr"];
      decays[name] = group["weight_decay"];
      ++count;
    }
  }
  CHECK(count == model->named_parameters().size());
  CHECK(rates.size() == count);
  CHECK(optimizer.lr() == 0.8);
  CHECK(rates["heads.head.weight"] == 0.8);
  CHECK(rates["encoder.ln.bias"] == 0.8);
  CHECK(rates["encoder.layers.encoder_layer_2.ln_1.weight"] == 0.4);
  CHECK(rates["encoder.layers.encoder_layer_0.mlp.3.weight"] == 0.1);
  CHECK(rates["conv_proj.weight"] == 0.05);
  CHECK(rates["encoder.pos_embedding"] == 0.05);
  CHECK(rates["class_token"] == 0.05);
  CHECK(decays["encoder.layers.encoder_layer_0.mlp.3.weight"] == 0.25);
  CHECK(decays["encoder.layers.encoder_layer_0.mlp.3.bias"] == 0);
  CHECK(decays["class_token"] == 0);
}

TEST_CASE("a schedule multiplies the rates of vectors and layers, and leaves them apart") {
  const auto model = tiny_vit();
  Config config;
  config.lr = 0.8;
  config.vector_lr = 16;
  config.layer_decay = 0.5;
  const auto optimizer = make_optimizer(config, *model);
  CHECK(optimizer->lr() == 0.8);
  const optim::Scheduler scheduler(*optimizer, [](int64_t) { return 0.5; });
  std::map<std::string, double> rates;
  for (const auto& group : optimizer->groups()) {
    for (const auto& [name, tensor] : group.parameters) rates[name] = group["lr"];
  }
  CHECK(optimizer->lr() == 0.4);
  CHECK(rates["heads.head.weight"] == 0.4);
  CHECK(rates["heads.head.bias"] == 6.4);
  CHECK(rates["conv_proj.weight"] == 0.025);
  CHECK(rates["conv_proj.bias"] == 0.4);
}

TEST_CASE("frozen layers count in the depth of the others") {
  const auto model = tiny_vit();
  freeze(*model, {"encoder.layers"});
  const auto groups = with_layer_decay(trained_parameters(*model), 0.5, model->structure());
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].lr_scale == 1);
  CHECK(groups[1].lr_scale == 0.0625);
}

TEST_CASE("layer decay of a model without layers is refused") {
  const auto model = models::make_model("resnet8");
  CHECK_THROWS_WITH(with_layer_decay(model->named_parameters(), 0.5, model->structure()),
                    "layer-decay: the model has no transformer's layers");
}

}  // namespace
}  // namespace weft::train
