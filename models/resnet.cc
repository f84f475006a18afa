#include "models/resnet.h"

#include <nlohmann/json.hpp>

#include "models/conv_matmul.h"
#include "models/option_taker.h"
#include "nn/init.h"

namespace weft::models {
namespace {

constexpr int64_t kExpansion = 4;  // channels out of a bottleneck, in multiples of its width

/// Of convolutions without biases: batch normalisation has them.
nn::Conv2dOptions same_padding(int64_t kernel, int64_t stride) {
  return {.stride = stride, .padding = kernel / 2};
}

}  // namespace

ResidualBlock::ResidualBlock(int64_t in, int64_t width, int64_t stride, bool bottleneck) {
  const int64_t out = bottleneck ? kExpansion * width : width;
  struct Layer {
    int64_t in, out, kernel, stride;
  };
  const std::vector<Layer> plan =
      bottleneck
          ? std::vector<Layer>{{in, width, 1, 1}, {width, width, 3, stride}, {width, out, 1, 1}}
          : std::vector<Layer>{{in, width, 3, stride}, {width, out, 3, 1}};
  for (size_t i = 0; i < plan.size(); ++i) {
    const Layer& l = plan[i];
    const std::string number = std::to_string(i + 1);
    auto& conv = add<nn::Conv2d>("conv" + number, l.in, l.out, l.kernel,
                                 same_padding(l.kernel, l.stride), false);
    layers_.emplace_back(&conv, &add<nn::BatchNorm2d>("bn" + number, l.out));
  }
  if (stride != 1 || in != out) {
    downsample_ = &add<nn::Sequential>("downsample");
    shortcut_ = &downsample_->append<nn::Conv2d>(in, out, 1, same_padding(1, stride), false);
    downsample_->append<nn::BatchNorm2d>(out);
  }
}

Tensor ResidualBlock::forward(const Tensor& x) {
  Tensor y = x;
  for (size_t i = 0; i < layers_.size(); ++i) {
    auto& [conv, norm] = layers_[i];
    y = (*norm)((*conv)(y));
    if (i + 1 < layers_.size()) y = ops::relu(y);
  }
  return ops::relu(y + (downsample_ ? (*downsample_)(x) : x));
}

Matmuls ResidualBlock::forward_matmuls(int64_t& side) const {
  Matmuls all;
  if (shortcut_) {
    int64_t own = side;
    all.push_back(conv_matmul(*shortcut_, own));
  }
  for (const auto& [conv, norm] : layers_) all.push_back(conv_matmul(*conv, side));
  return all;
}

ResNet::ResNet(const ResNetConfig& config)
    : Classifier(config.image_size, config.channels, config.classes),
      config(config),
      conv1(config.large_stem ? add<nn::Conv2d>("conv1", config.channels, config.widths.at(0), 7,
                                                same_padding(7, 2), false)
                              : add<nn::Conv2d>("conv1", config.channels, config.widths.at(0), 3,
                                                same_padding(3, 1), false)),
      bn1(add<nn::BatchNorm2d>("bn1", config.widths.at(0))) {
  WEFT_CHECK(config.blocks.size() == config.widths.size(),
             "ResNet: {} stages of blocks, but {} widths", config.blocks.size(),
             config.widths.size());
  int64_t in = config.widths[0];
  for (size_t stage = 0; stage < config.blocks.size(); ++stage) {
    auto& layer = add<nn::Sequential>("layer" + std::to_string(stage + 1));
    for (int64_t i = 0; i < config.blocks[stage]; ++i) {
      const int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      blocks.push_back(
          &layer.append<ResidualBlock>(in, config.widths[stage], stride, config.bottleneck));
      in = config.widths[stage] * (config.bottleneck ? kExpansion : 1);
    }
  }
  fc = &add<nn::Linear>("fc", in, config.classes);
  for (const auto& [name, module] : named_modules()) {
    if (auto* conv = dynamic_cast<nn::Conv2d*>(module)) {
      nn::init::kaiming_normal(conv->weight, nn::init::Fan::kOut);
    }
  }
}

Tensor ResNet::stem(const Tensor& images) {
  check_images("ResNet", images);
  const Tensor x = ops::relu(bn1(conv1(images)));
  if (!config.large_stem) return x;
  return ops::max_pool2d(x, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
}

Tensor ResNet::forward(const Tensor& images) {
  Tensor x = stem(images);
  for (ResidualBlock* block : blocks) x = (*block)(x);
  return head(x);
}

nn::ModelStructure ResNet::structure() {
  nn::ModelStructure structure(nn::wrap_modules<ResidualBlock>());
  structure.segments = {
      {"stem", [this](const Tensor& images) { return stem(images); }, {"conv1", "bn1"}}};
  for (const auto& [name, module] : named_modules()) {
    if (!structure.units(name, *module)) continue;
    structure.segments.push_back(
        {name, [block = module](const Tensor& x) { return (*block)(x); }, {name}});
  }
  structure.segments.push_back({"head", [this](const Tensor& x) { return head(x); }, {"fc"}});
  structure.head = fc;
  structure.replica = [config = config] { return std::make_unique<ResNet>(config); };
  return structure;
}

Matmuls ResNet::forward_matmuls(int64_t images) const {
  int64_t side = config.image_size;
  Matmuls all = {conv_matmul(conv1, side)};
  if (config.large_stem) side = (side - 1) / 2 + 1;
  for (const ResidualBlock* block : blocks) {
    for (const Matmul& matmul : block->forward_matmuls(side)) all.push_back(matmul);
  }
  all.push_back({.name = "fc", .m = 1, .n = config.classes, .k = fc->weight.size(1)});
  for (Matmul& matmul : all) matmul.m *= images;
  return all;
}

nlohmann::ordered_json ResNet::architecture() const {
  return {{"blocks", config.blocks},         {"widths", config.widths},
          {"bottleneck", config.bottleneck}, {"large_stem", config.large_stem},
          {"image_size", config.image_size}, {"channels", config.channels},
          {"classes", config.classes}};
}

std::unique_ptr<Classifier> make_resnet8(OptionTaker o) {
  return o.make<ResNet>(ResNetConfig::resnet8());
}
std::unique_ptr<Classifier> make_resnet50(OptionTaker o) {
  return o.make<ResNet>(ResNetConfig::resnet50());
}

}  // namespace weft::models
