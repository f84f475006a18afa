// Models by name.
//
//   auto model = models::make_model("cct", {.image_size = 32, .classes = 10});
//
// vit_b_16, vit_b_32, vit_l_16 and resnet50 are torchvision's; the others are for 32x32 images.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "models/classifier.h"

namespace weft::models {

/// What is left out is the model's own. Options that a model does not have are refused.
struct ModelOptions {
  std::optional<int64_t> image_size = {};
  std::optional<int64_t> channels = {};
  std::optional<int64_t> classes = {};
  // Transformers only.
  std::optional<int64_t> patch = {};
  std::optional<int64_t> layers = {};
  std::optional<int64_t> heads = {};
  std::optional<int64_t> width = {};
  std::optional<int64_t> hidden = {};
  std::optional<int64_t> representation = {};  // vit_b_16 and its kind
  std::optional<bool> class_token = {};        // vit_lite and cct: instead of sequence pooling
  std::optional<double> dropout = {};
  std::optional<double> attention_dropout = {};
  std::optional<double> drop_path = {};
  std::optional<double> layer_norm_eps = {};
  std::optional<bool> checkpoint_activations = {};
};

/// Those that are set, under their names; for checkpoints.
nlohmann::json to_json(const ModelOptions& options);
/// Throws Error naming an unknown option or one of a wrong type.
ModelOptions model_options_from_json(const nlohmann::json& json);

/// A model with fresh parameters from this thread's generator. Throws Error listing the known names
/// when there is none of that name, and naming an option that the model does not have.
std::unique_ptr<Classifier> make_model(const std::string& name, const ModelOptions& options = {});
std::vector<std::string> model_names();

}  // namespace weft::models
