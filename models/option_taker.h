// What a model's source file offers to the registry: for each line of models.inc a function
// make_NAME, which takes the options that the model has and makes it.
//
//   std::unique_ptr<Classifier> make_resnet8(OptionTaker options) {
//     return options.make<ResNet>(ResNetConfig::resnet8());
//   }
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "models/registry.h"

namespace weft::models {

/// Moves options into a configuration; what nobody took the model does not have.
class OptionTaker {
 public:
  OptionTaker(std::string model, const ModelOptions& options)
      : model_(std::move(model)), options_(options) {}

  /// Leaves `into` as it is where the option is not set.
  template <class T>
  void take(std::optional<T> ModelOptions::*option, T& into) {
    into = (options_.*option).value_or(into);
    (options_.*option).reset();
  }

  /// The model, once those of its options were taken that not all have. Throws as finish() does.
  template <class Model, class Config>
  std::unique_ptr<Classifier> make(Config config) {
    take(&ModelOptions::image_size, config.image_size);
    take(&ModelOptions::channels, config.channels);
    take(&ModelOptions::classes, config.classes);
    finish();
    return std::make_unique<Model>(config);
  }
  /// Throws Error naming the model and an option that nobody took.
  void finish() const;

 private:
  std::string model_;
  ModelOptions options_;
};

#define WEFT_MODEL(name) std::unique_ptr<Classifier> make_##name(OptionTaker options);
#include "models/models.inc"  // IWYU pragma: keep
#undef WEFT_MODEL

}  // namespace weft::models
