#include "models/pixels.h"

#include <nlohmann/json.hpp>

#include "autograd/ops.h"
#include "models/option_taker.h"

namespace weft::models {

Pixels::Pixels(const PixelsConfig& c)
    : Classifier(c.image_size, c.channels, c.classes),
      config(c),
      head(add<nn::Linear>("head", c.channels * c.image_size * c.image_size, c.classes)) {}

Tensor Pixels::forward(const Tensor& images) {
  check_images("pixels", images);
  return head(ops::flatten(images, 1));
}

nn::ModelStructure Pixels::structure() {
  nn::ModelStructure structure(nn::wrap_modules<nn::Linear>());
  structure.head = &head;
  structure.replica = [c = config] { return std::make_unique<Pixels>(c); };
  return structure;
}

Matmuls Pixels::forward_matmuls(int64_t images) const {
  return {
      {"head", images, config.classes, config.channels * config.image_size * config.image_size}};
}

nlohmann::ordered_json Pixels::architecture() const {
  return {{"image_size", config.image_size},
          {"channels", config.channels},
          {"classes", config.classes}};
}

std::unique_ptr<Classifier> make_pixels(OptionTaker options) {
  PixelsConfig config;
  options.take_image(config);
  options.finish();
  return std::make_unique<Pixels>(config);
}

}  // namespace weft::models
