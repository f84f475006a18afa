#include "models/vgg.h"

#include <nlohmann/json.hpp>

#include "models/conv_matmul.h"
#include "models/option_taker.h"
#include "nn/init.h"

namespace weft::models {
namespace {

constexpr int64_t kPooled = 7;  // side of the maps that the classifier takes

/// [N, C, side, side] as [N, C kPooled^2]: means over windows, whatever the side.
Tensor pooled(const Tensor& x) { return ops::flatten(ops::adaptive_avg_pool2d(x, kPooled), 1); }

}  // namespace

Vgg::Vgg(const VggConfig& config)
    : Classifier(config.image_size, config.channels, config.classes),
      config(config),
      features(add<nn::Sequential>("features")),
      classifier(add<nn::Sequential>("classifier")) {
  const auto smallest = int64_t{1} << config.stages.size();
  WEFT_CHECK(config.image_size >= smallest, "Vgg: images of {} pixels, {} poolings leave nothing",
             config.image_size, config.stages.size());
  int64_t in = config.channels;
  for (const std::vector<int64_t>& stage : config.stages) {
    for (const int64_t out : stage) {
      nn::Conv2d& conv = features.append<nn::Conv2d>(in, out, 3, nn::Conv2dOptions{.padding = 1});
      nn::init::kaiming_normal(conv.weight, nn::init::Fan::kOut);
      nn::init::zeros(conv.bias);
      convolutions_.push_back(&conv);
      features.append<nn::ReLU>();
      in = out;
    }
    features.append<nn::MaxPool2d>(2);
  }
  const auto linear = [&](int64_t from, int64_t to) {
    nn::Linear& layer = classifier.append<nn::Linear>(from, to);
    nn::init::normal(layer.weight, 0, 0.01);
    nn::init::zeros(layer.bias);
    linears_.push_back(&layer);
  };
  linear(in * kPooled * kPooled, config.hidden);
  for (const int64_t out : {config.hidden, config.classes}) {
    classifier.append<nn::ReLU>();
    classifier.append<nn::Dropout>(config.dropout);
    linear(config.hidden, out);
  }
}

Tensor Vgg::forward(const Tensor& images) {
  check_images("Vgg", images);
  return classifier(pooled(features(images)));
}

nn::ModelStructure Vgg::structure() {
  nn::ModelStructure structure(nn::wrap_modules<nn::Conv2d, nn::Linear>());
  const auto add_children = [&](const std::string& name, nn::Sequential& parent) {
    for (int64_t i = 0; i < parent.size(); ++i) {
      const std::string child = name + "." + std::to_string(i);
      structure.segments.push_back(
          {child, [&layer = parent[i]](const Tensor& x) { return layer(x); }, {child}});
    }
  };
  add_children("features", features);
  structure.segments.push_back({"avgpool", pooled, {}});
  add_children("classifier", classifier);
  structure.segments.front().forward = [this](const Tensor& images) {
    check_images("Vgg", images);
    return features[0](images);
  };
  structure.mlps = {{linears_[0], linears_[1]}};
  structure.head = linears_[2];
  structure.replica = [config = config] { return std::make_unique<Vgg>(config); };
  return structure;
}

Matmuls Vgg::forward_matmuls(int64_t images) const {
  Matmuls all;
  int64_t side = config.image_size;
  auto conv = convolutions_.begin();
  for (const std::vector<int64_t>& stage : config.stages) {
    for (size_t i = 0; i < stage.size(); ++i) all.push_back(conv_matmul(**conv++, side));
    side /= 2;
  }
  constexpr Role kRoles[] = {Role::kColumns, Role::kRows, Role::kWhole};
  for (size_t i = 0; i < linears_.size(); ++i) {
    const Shape& weight = linears_[i]->weight.shape();
    all.push_back({.name = "linear", .m = 1, .n = weight[0], .k = weight[1], .role = kRoles[i]});
  }
  for (Matmul& matmul : all) matmul.m *= images;
  return all;
}

nlohmann::ordered_json Vgg::architecture() const {
  return {{"stages", config.stages},
          {"hidden", config.hidden},
          {"image_size", config.image_size},
          {"channels", config.channels},
          {"classes", config.classes}};
}

std::unique_ptr<Classifier> make_vgg11(OptionTaker o) { return o.make<Vgg>(VggConfig::vgg11()); }

}  // namespace weft::models
