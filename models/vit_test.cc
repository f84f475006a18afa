#include "models/vit.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/random.h"
#include "models/registry.h"
#include "nn/init.h"
#include "nn/loss.h"
#include "optim/adam.h"

namespace weft::models {
namespace {

VitConfig tiny(int64_t width = 8) {
  return {.image_size = 8,
          .patch = 4,
          .classes = 3,
          .encoder = {.layers = 2, .heads = 2, .width = width, .hidden = 2 * width}};
}

/// torchvision's table: every name with its shape.
std::map<std::string, Shape> torchvision_table(int64_t layers, int64_t w, int64_t hidden,
                                               int64_t patch, int64_t tokens) {
  std::map<std::string, Shape> t = {
      {"class_token", {1, 1, w}},       {"conv_proj.weight", {w, 3, patch, patch}},
      {"conv_proj.bias", {w}},          {"encoder.pos_embedding", {1, tokens, w}},
      {"encoder.ln.weight", {w}},       {"encoder.ln.bias", {w}},
      {"heads.head.weight", {1000, w}}, {"heads.head.bias", {1000}},
  };
  for (int64_t i = 0; i < layers; ++i) {
    const std::string layer = "encoder.layers.encoder_layer_" + std::to_string(i) + ".";
    t[layer + "ln_1.weight"] = t[layer + "ln_1.bias"] = {w};
    t[layer + "ln_2.weight"] = t[layer + "ln_2.bias"] = {w};
    t[layer + "self_attention.in_proj_weight"] = {3 * w, w};
    t[layer + "self_attention.in_proj_bias"] = {3 * w};
    t[layer + "self_attention.out_proj.weight"] = {w, w};
    t[layer + "self_attention.out_proj.bias"] = {w};
    t[layer + "mlp.0.weight"] = {hidden, w};
    t[layer + "mlp.0.bias"] = {hidden};
    t[layer + "mlp.3.weight"] = {w, hidden};
    t[layer + "mlp.3.bias"] = {w};
  }
  return t;
}

double spread(const Tensor& x) { return std::sqrt(ops::mean(ops::square(x)).item()); }
double largest(const Tensor& x) { return ops::max(ops::abs(x)).item(); }

TEST_CASE("vit_b_16 has torchvision's 152 tensors, initialised as there") {
  manual_seed(41);
  const auto model = make_model("vit_b_16");
  const NamedTensors parameters = model->named_parameters();
  CHECK(parameters.size() == 152);
  CHECK(model->num_parameters() == 86'567'656);
  CHECK(model->named_buffers().empty());
  const auto table = torchvision_table(12, 768, 3072, 16, 197);
  CHECK(table.size() == 152);
  std::map<std::string, Tensor> by_name(parameters.begin(), parameters.end());
  for (const auto& [name, shape] : table) {
    CAPTURE(name);
    REQUIRE(by_name.count(name) == 1);
    CHECK(by_name[name].shape() == shape);
  }
  // torchvision registers in this order; an optimizer's state is numbered by it.
  CHECK(parameters[0].first == "class_token");
  CHECK(parameters[1].first == "conv_proj.weight");
  CHECK(parameters[3].first == "encoder.pos_embedding");
  CHECK(parameters[4].first == "encoder.layers.encoder_layer_0.ln_1.weight");
  CHECK(parameters[6].first == "encoder.layers.encoder_layer_0.self_attention.in_proj_weight");
  CHECK(parameters[151].first == "heads.head.bias");

  const NoGrad guard;
  const std::string layer = "encoder.layers.encoder_layer_5.";
  for (const std::string name : {"class_token", "conv_proj.bias", "heads.head.weight",
                                 "heads.head.bias", "encoder.ln.bias"}) {
    CHECK(largest(by_name[name]) == 0);
  }
  // Of n samples the deviation is known to 1/sqrt(2n); 1% is more than five times that.
  CHECK(spread(by_name["conv_proj.weight"]) == Approx(std::sqrt(1.0 / 768)).epsilon(0.01));
  CHECK(spread(by_name["encoder.pos_embedding"]) == Approx(0.02).epsilon(0.01));
  CHECK(spread(by_name[layer + "mlp.0.bias"]) == Approx(1e-6).epsilon(0.1));
  const double fused = std::sqrt(6.0 / (768 + 3 * 768)), mlp = std::sqrt(6.0 / (768 + 3072));
  CHECK(largest(by_name[layer + "self_attention.in_proj_weight"]) <= fused);
  CHECK(largest(by_name[layer + "self_attention.in_proj_weight"]) > 0.999 * fused);
  CHECK(largest(by_name[layer + "mlp.3.weight"]) <= mlp);
  CHECK(largest(by_name[layer + "mlp.3.weight"]) > 0.999 * mlp);
  CHECK(largest(by_name[layer + "self_attention.out_proj.weight"]) <= 1 / std::sqrt(768.0));
  CHECK(largest(by_name[layer + "self_attention.in_proj_bias"]) == 0);
  CHECK(largest(by_name[layer + "self_attention.out_proj.bias"]) == 0);

  CHECK(model->forward_matmul_flops() == 35'127'656'448);
  CHECK(dynamic_cast<VisionTransformer&>(*model).encoder.ln.eps == 1e-6);
}

// All layers are alike: two small models tell the size of the whole.
int64_t parameters_of(const std::string& name, int64_t layers) {
  const int64_t one = make_model(name, {.layers = 1})->num_parameters();
  const int64_t two = make_model(name, {.layers = 2})->num_parameters();
  return one + (layers - 1) * (two - one);
}

TEST_CASE("the other sizes have torchvision's parameter counts") {
  CHECK(parameters_of("vit_b_32", 12) == 88'224'232);
  CHECK(parameters_of("vit_l_16", 24) == 304'326'632);
  // With a representation layer: 768 x 768 + 768 more.
  const int64_t plain = make_model("vit_b_16", {.layers = 1})->num_parameters();
  const auto model = make_model("vit_b_16", {.layers = 1, .representation = 768});
  CHECK(model->num_parameters() == plain + 768 * 769);
  CHECK(model->state_dict().back().first == "heads.head.bias");
  CHECK(model->state_dict()[model->state_dict().size() - 4].first == "heads.pre_logits.weight");
}

/// Element i of parameter number t: 0.4 sin(0.7 i + t), plus 1 in the weights of layer norms.
void fill_by_formula(nn::Module& model) {
  int t = 0;
  for (auto& [name, parameter] : model.named_parameters()) {
    const bool is_scale = name.find(".ln") != std::string::npos && name.ends_with("weight");
    double* data = parameter.data<double>();
    for (int64_t i = 0; i < parameter.numel(); ++i) {
      data[i] = 0.4 * std::sin(0.7 * static_cast<double>(i) + t) + (is_scale ? 1 : 0);
    }
    ++t;
  }
}

// The same model written in PyTorch 1.13, in f64 with the same weights and images.
TEST_CASE("logits, loss and gradients equal PyTorch's") {
  VisionTransformer model(tiny());
  model.to(DType::f64);
  fill_by_formula(model);
  std::vector<double> pixels(2 * 3 * 8 * 8);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = std::cos(0.1 * static_cast<double>(i));
  const Tensor images = Tensor::from(pixels, {2, 3, 8, 8});

  const Tensor logits = model(images);
  const double few_roundings = 1e-11;
  const std::vector<double> expected = {-1.4438481864568125, -0.31704667628462757,
                                        0.9496626109635207,  -1.4400087157962547,
                                        -0.2994331293018569, 0.9731440723817111};
  for (int i = 0; i < 6; ++i) {
    CHECK(logits.to_vector()[i] == Approx(expected[i]).epsilon(few_roundings));
  }
  const Tensor loss = nn::cross_entropy(logits, Tensor::from(std::vector<int64_t>{2, 0}, {2}));
  CHECK(loss.item() == Approx(1.5223738961036741).epsilon(few_roundings));
  backward(loss);
  const std::map<std::string, double> norms = {
      {"class_token", 13.161704413022857},
      {"conv_proj.weight", 3.736277106045873},
      {"encoder.pos_embedding", 13.178694569274109},
      {"encoder.layers.encoder_layer_0.self_attention.in_proj_weight", 1.2817899183597636},
      {"encoder.layers.encoder_layer_1.mlp.0.bias", 0.03597780694641106}};
  int found = 0;
  for (const auto& [name, parameter] : model.named_parameters()) {
    REQUIRE(parameter.grad().defined());
    const auto norm = norms.find(name);
    if (norm == norms.end()) continue;
    ++found;
    CAPTURE(name);
    CHECK(std::sqrt(ops::sum(ops::square(parameter.grad())).item()) ==
          Approx(norm->second).epsilon(few_roundings));
  }
  CHECK(found == 5);
}

TEST_CASE("a tiny ViT learns 32 random images by heart") {
  manual_seed(43);
  VisionTransformer model(tiny(32));
  const Tensor images = ops::randn({32, 3, 8, 8});
  std::vector<int64_t> labels(32);
  for (int i = 0; i < 32; ++i) labels[i] = i * i % 7 % 3;
  const Tensor targets = Tensor::from(labels, {32});
  optim::AdamW optimizer(model.named_parameters(), {.lr = 3e-3});
  double loss_value = 0;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    const Tensor loss = nn::cross_entropy(model(images), targets);
    loss_value = loss.item();
    if (step == 0) CHECK(loss_value == Approx(std::log(3.0)));  // the head starts at zero
    backward(loss);
    optimizer.step();
  }
  CHECK(loss_value < 0.05);
  const NoGrad guard;
  CHECK(ops::argmax(model(images), 1).to_vector() == targets.to_vector());
}

/// Gradients of all parameters, and the logits, of one step.
std::vector<std::vector<double>> step_of(VisionTransformer& model, const Tensor& images,
                                         DType precision) {
  manual_seed(99);  // for dropout
  model.zero_grad();
  const Autocast mode(precision);
  const Tensor logits = model(images);
  backward(nn::cross_entropy(logits, Tensor::from(std::vector<int64_t>{2, 0, 1}, {3})));
  std::vector<std::vector<double>> values = {logits.to_vector()};
  for (const Tensor& p : model.parameters()) values.push_back(p.grad().to_vector());
  return values;
}

TEST_CASE("checkpointed activations change no bit, dropout and mixed precision included") {
  const DType precision = GENERATE(DType::f32, DType::bf16);
  VitConfig config = tiny(16);
  config.encoder.dropout = 0.1;
  config.encoder.attention_dropout = 0.2;
  config.encoder.drop_path = 0.3;
  manual_seed(44);
  VisionTransformer plain(config);
  nn::init::normal(plain.named_parameters()[plain.parameters().size() - 2].second);  // the head
  config.encoder.checkpoint_activations = true;
  VisionTransformer checkpointed(config);
  checkpointed.load_state_dict(plain.state_dict());
  const Tensor images = ops::randn({3, 3, 8, 8});
  const auto a = step_of(plain, images, precision), b = step_of(checkpointed, images, precision);
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(a[i] == b[i]);
  }
}

TEST_CASE("states with the older names of the MLP load") {
  VisionTransformer model(tiny()), other(tiny());
  NamedTensors state = other.state_dict();
  for (auto& [name, tensor] : state) {
    const auto rename = [&name = name](const std::string& from, const std::string& to) {
      if (const size_t at = name.find(from); at != std::string::npos) {
        name.replace(at, from.size(), to);
      }
    };
    rename("mlp.0.", "mlp.linear_1.");
    rename("mlp.3.", "mlp.linear_2.");
  }
  CHECK(state[12].first == "encoder.layers.encoder_layer_0.mlp.linear_1.weight");
  model.load_state_dict(state);
  CHECK(model.state_dict()[12].second.to_vector() == other.state_dict()[12].second.to_vector());
}

TEST_CASE("bad images and configurations are refused") {
  VisionTransformer model(tiny());
  CHECK_THROWS_WITH(
      model(Tensor::zeros({1, 3, 8, 12})),
      "VisionTransformer: expected images [N, 3, 8, 8], got f32 [1, 3, 8, 12] on cpu");
  VitConfig config = tiny();
  config.patch = 3;
  CHECK_THROWS_WITH(VisionTransformer(config),
                    "VisionTransformer: patches of 3 pixels do not tile images of 8");
  config = tiny();
  config.classes = 0;
  CHECK_THROWS_WITH(VisionTransformer(config), Catch::Contains("must be positive, got 8, 3 and 0"));
}

}  // namespace
}  // namespace weft::models
