#include "models/registry.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "autograd/ops.h"
#include "autograd/random.h"
#include "models/gpt_names.h"
#include "nn/layers.h"
#include "nn/meta.h"

namespace weft::models {
namespace {

TEST_CASE("unknown models and options are named") {
  CHECK_THROWS_WITH(make_model("vit_b16"),
                    "unknown model \"vit_b16\"; known are vit_b_16, vit_b_32, vit_l_16, vit_lite, "
                    "cct, cct_2_3x3, vit_lite_7_4, cct_6_3x1, cct_7_3x1, resnet8, resnet50, "
                    "vgg11, simple_cnn, airbench; did you mean \"vit_b_16\"?");
  CHECK_THROWS_WITH(make_model("vit_b_61"), Catch::Contains("; did you mean \"vit_b_16\"?"));
  CHECK_THROWS_WITH(make_model("mlp_mixer"), Catch::EndsWith("simple_cnn, airbench"));
  CHECK_THROWS_WITH(gpt_config("gpt_mnii"),
                    "unknown language model \"gpt_mnii\"; known are gpt, gpt_mini; did you mean "
                    "\"gpt_mini\"?");
  CHECK_THROWS_WITH(make_model("resnet8", {.drop_path = 0.1}),
                    "model resnet8 has no option \"drop_path\"");
  CHECK_THROWS_WITH(make_model("cct", {.patch = 4}), "model cct has no option \"patch\"");
  CHECK_THROWS_WITH(make_model("cct", {.representation = 4}),
                    "model cct has no option \"representation\"");
  CHECK_THROWS_WITH(make_model("vit_b_16", {.class_token = false}),
                    "model vit_b_16 has no option \"class_token\"");
}

TEST_CASE("options survive JSON, and only those that were set are written") {
  const ModelOptions options = {
      .image_size = 16, .classes = 7, .layers = 1, .class_token = true, .drop_path = 0.125};
  const nlohmann::json json = to_json(options);
  CHECK(json.dump() ==
        R"({"class_token":true,"classes":7,"drop_path":0.125,"image_size":16,"layers":1})");
  const ModelOptions again = model_options_from_json(nlohmann::json::parse(json.dump()));
  CHECK(to_json(again) == json);
  CHECK_FALSE(again.dropout.has_value());
  manual_seed(71);
  const auto model = make_model("vit_lite", again);
  CHECK(model->image_size() == 16);
  CHECK(model->classes() == 7);
  CHECK(model->channels() == 3);
  CHECK_THROWS_WITH(model_options_from_json({{"depth", 3}}),
                    "model options: unknown option \"depth\"");
  CHECK_THROWS_WITH(model_options_from_json({{"layer", 3}}),
                    "model options: unknown option \"layer\"; did you mean \"layers\"?");
  CHECK_THROWS_WITH(model_options_from_json({{"layers", "three"}}),
                    "model options: \"layers\": expected a whole number, got \"three\"");
  CHECK_THROWS_WITH(model_options_from_json(3),
                    "model options: expected a JSON object, got number");
}

TEST_CASE("every model has a form without memory, for ranks that get their weights from another") {
  for (const std::string& name : model_names()) {
    INFO(name);
    const nn::MetaScope meta;
    CHECK(make_model(name)->num_parameters() > 0);
  }
}

TEST_CASE("the seed alone decides a model's parameters") {
  const auto draw = [](uint64_t seed) {
    manual_seed(seed);
    std::vector<double> all;
    for (const Tensor& p : make_model("cct")->parameters()) {
      for (double v : p.to_vector()) all.push_back(v);
    }
    return all;
  };
  CHECK(draw(7) == draw(7));
  CHECK(draw(7) != draw(8));
}

TEST_CASE("the matrix products of a batch are as many times those of an image") {
  for (const std::string name : {"vit_lite", "cct", "cct_2_3x3", "resnet8"}) {
    CAPTURE(name);
    const auto model = make_model(name);
    double batch = 0;
    for (const Matmul& matmul : model->forward_matmuls(5)) batch += matmul.flops();
    CHECK(batch == 5 * model->forward_matmul_flops());
  }
}

TEST_CASE("models say what others have to know of them") {
  const auto [name, options, layers] = GENERATE(table<std::string, ModelOptions, int64_t>(
      {{"vit_b_16",
        {.image_size = 8,
         .classes = 3,
         .patch = 4,
         .layers = 3,
         .heads = 2,
         .width = 8,
         .hidden = 16},
        3},
       {"vit_lite_7_4", {.image_size = 16, .classes = 3}, 7},
       {"cct_2_3x3", {.image_size = 16, .classes = 3}, 2},
       {"resnet8", {.classes = 3}, 0}}));
  CAPTURE(name);
  const auto model = make_model(name, options);
  model->eval();
  const nn::ModelStructure structure = model->structure();
  const NamedTensors state = model->state_dict();
  for (const auto& [tensor, value] : state) {
    CAPTURE(tensor);
    CHECK(std::ranges::count_if(structure.segments, [&, &named = tensor](const auto& segment) {
            return nn::owns(segment, named);
          }) == 1);
  }
  const NoGrad guard;
  const Tensor images =
      ops::randn({2, model->channels(), model->image_size(), model->image_size()});
  Tensor x = images;
  for (const nn::Segment& segment : structure.segments) x = segment.forward(x);
  CHECK(x.to_vector() == (*model)(images).to_vector());

  CHECK(structure.layers == layers);
  CHECK(structure.mlps.size() == static_cast<size_t>(layers));
  CHECK((structure.tokens.count > 0) == (layers > 0));
  if (layers > 0) CHECK(structure.segments.size() == static_cast<size_t>(layers) + 2);
  CHECK(structure.head->weight.size(0) == 3);
  for (const std::string& embedding : structure.embeddings) {
    CHECK(std::ranges::count(state, embedding, &NamedTensors::value_type::first) == 1);
  }
  const NamedTensors again = structure.replica()->state_dict();
  REQUIRE(again.size() == state.size());
  for (size_t i = 0; i < state.size(); ++i) {
    CHECK(again[i].first == state[i].first);
    CHECK(again[i].second.shape() == state[i].second.shape());
  }
}

}  // namespace
}  // namespace weft::models
