#include "models/airbench.h"

#include <cmath>
#include <eigen3/Eigen/Eigenvalues>
#include <nlohmann/json.hpp>

#include "models/conv_matmul.h"
#include "models/option_taker.h"
#include "nn/meta.h"

namespace weft::models {
namespace {

constexpr int64_t kPatch = 2;
constexpr double kLeastVariance = 5e-4;  // added to the eigenvalues
constexpr double kNormMomentum = 0.4;    // running statistics follow a short training
constexpr double kLogitScale = 1.0 / 9;  // of features that are maxima, not means

/// Channel i of the result is channel i of the input, for as many as the input has.
void begin_as_identity(Tensor& weight) {
  if (!nn::has_memory(weight)) return;
  const NoGrad guard;
  const int64_t channels = std::min(weight.size(0), weight.size(1));
  Tensor first = ops::narrow(weight, 0, 0, channels);
  Tensor identity = Tensor::zeros(first.shape());
  float* const values = identity.data<float>();
  const int64_t window = weight.size(2) * weight.size(3);
  for (int64_t i = 0; i < channels; ++i) {
    values[(i * weight.size(1) + i) * window + window / 2] = 1;
  }
  ops::copy_(first, ops::to(identity, weight.device()));
}

/// The mean of p p^T over all patches p of the images, [channels * kPatch^2] squared.
Eigen::MatrixXd patch_covariance(const Tensor& images) {
  const int64_t count = images.size(0), channels = images.size(1);
  const int64_t height = images.size(2), width = images.size(3);
  const int64_t rows = height - kPatch + 1, columns = width - kPatch + 1;
  const int64_t size = channels * kPatch * kPatch;
  Eigen::MatrixXd sum = Eigen::MatrixXd::Zero(size, size);
  Eigen::MatrixXd patches(size, rows * columns);
  for (int64_t n = 0; n < count; ++n) {
    const std::vector<double> values = ops::select(images, 0, n).to_vector();
    for (int64_t i = 0; i < size; ++i) {
      const int64_t c = i / (kPatch * kPatch), dy = i / kPatch % kPatch, dx = i % kPatch;
      for (int64_t y = 0; y < rows; ++y) {
        for (int64_t x = 0; x < columns; ++x) {
          patches(i, y * columns + x) = values[(c * height + y + dy) * width + x + dx];
        }
      }
    }
    sum += patches * patches.transpose();
  }
  return sum / static_cast<double>(count * rows * columns);
}

nn::BatchNorm2d& without_scale(nn::BatchNorm2d& norm) {
  norm.weight.set_requires_grad(false);
  return norm;
}

}  // namespace

ConvGroup::ConvGroup(int64_t in, int64_t out)
    : conv1(add<nn::Conv2d>("conv1", in, out, 3, nn::Conv2dOptions{.padding = 1}, false)),
      norm1(without_scale(add<nn::BatchNorm2d>("norm1", out, 1e-5, kNormMomentum))),
      conv2(add<nn::Conv2d>("conv2", out, out, 3, nn::Conv2dOptions{.padding = 1}, false)),
      norm2(without_scale(add<nn::BatchNorm2d>("norm2", out, 1e-5, kNormMomentum))) {
  begin_as_identity(conv1.weight);
  begin_as_identity(conv2.weight);
}

Tensor ConvGroup::forward(const Tensor& x) {
  const Tensor y = ops::gelu(norm1(ops::max_pool2d(conv1(x))));
  return ops::gelu(norm2(conv2(y)));
}

Airbench::Airbench(const AirbenchConfig& config)
    : Classifier(config.image_size, config.channels, config.classes),
      config(config),
      whiten(add<nn::Conv2d>("whiten", config.channels, 2 * config.channels * kPatch * kPatch,
                             kPatch)),
      groups(add_groups()),
      head(add<nn::Linear>("head", groups.back()->conv2.weight.size(0), config.classes, false)) {
  whiten.weight.set_requires_grad(false);
}

std::vector<ConvGroup*> Airbench::add_groups() {
  const int64_t smallest = (int64_t{1} << config.widths.size()) + kPatch - 1;
  WEFT_CHECK(!config.widths.empty(), "Airbench: widths are empty, expected one for each group");
  WEFT_CHECK(config.image_size >= smallest, "Airbench: images of {} pixels, expected {} at least",
             config.image_size, smallest);
  std::vector<ConvGroup*> added;
  int64_t in = whiten.weight.size(0);
  for (const int64_t width : config.widths) {
    added.push_back(&add<ConvGroup>("group" + std::to_string(added.size() + 1), in, width));
    in = width;
  }
  return added;
}

void Airbench::adapt_to(const Tensor& images) {
  check_images("Airbench", images);
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(patch_covariance(images));
  const int64_t half = solver.eigenvalues().size();
  std::vector<float> filters(2 * half * half);
  for (int64_t i = 0; i < half; ++i) {
    const double scale = 1 / std::sqrt(solver.eigenvalues()(i) + kLeastVariance);
    for (int64_t j = 0; j < half; ++j) {
      const auto value = static_cast<float>(scale * solver.eigenvectors()(j, i));
      filters[i * half + j] = value;
      filters[(half + i) * half + j] = -value;
    }
  }
  const NoGrad guard;
  const Tensor made = Tensor::from(filters, whiten.weight.shape());
  ops::copy_(whiten.weight, ops::to(made, whiten.weight.device()));
}

Tensor Airbench::stem(const Tensor& images) {
  check_images("Airbench", images);
  return ops::gelu(whiten(images));
}

Tensor Airbench::logits(const Tensor& x) { return head(ops::max(x, {2, 3})) * kLogitScale; }

Tensor Airbench::forward(const Tensor& images) {
  Tensor x = stem(images);
  for (ConvGroup* group : groups) x = (*group)(x);
  return logits(x);
}

nn::ModelStructure Airbench::structure() {
  nn::ModelStructure structure(nn::wrap_modules<ConvGroup>());
  structure.segments = {
      {"whiten", [this](const Tensor& images) { return stem(images); }, {"whiten"}}};
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::string name = "group" + std::to_string(i + 1);
    structure.segments.push_back(
        {name, [group = groups[i]](const Tensor& x) { return (*group)(x); }, {name}});
  }
  structure.segments.push_back({"head", [this](const Tensor& x) { return logits(x); }, {"head"}});
  structure.head = &head;
  structure.adapt_to = [this](const Tensor& images) { adapt_to(images); };
  structure.replica = [config = config] { return std::make_unique<Airbench>(config); };
  return structure;
}

Matmuls Airbench::forward_matmuls(int64_t images) const {
  int64_t side = config.image_size;
  Matmuls all = {conv_matmul(whiten, side)};
  for (const ConvGroup* group : groups) {
    all.push_back(conv_matmul(group->conv1, side));
    side /= 2;
    all.push_back(conv_matmul(group->conv2, side));
  }
  all.push_back({.name = "head", .m = 1, .n = config.classes, .k = head.weight.size(1)});
  for (Matmul& matmul : all) matmul.m *= images;
  return all;
}

nlohmann::ordered_json Airbench::architecture() const {
  return {{"image_size", config.image_size},
          {"channels", config.channels},
          {"classes", config.classes},
          {"widths", config.widths}};
}

std::unique_ptr<Classifier> make_airbench(OptionTaker o) {
  return o.make<Airbench>(AirbenchConfig());
}

}  // namespace weft::models
