#include "models/classifier.h"

#include <nlohmann/json.hpp>

namespace weft::models {

Classifier::Classifier(int64_t image_size, int64_t channels, int64_t classes)
    : image_size_(image_size), channels_(channels), classes_(classes) {
  WEFT_CHECK(image_size > 0 && channels > 0 && classes > 0,
             "model: image size, channels and classes must be positive, got {}, {} and {}",
             image_size, channels, classes);
}

void Classifier::check_images(std::string_view model, const Tensor& images) const {
  WEFT_CHECK(images.defined() && images.dim() == 4 && images.size(1) == channels_ &&
                 images.size(2) == image_size_ && images.size(3) == image_size_,
             "{}: expected images [N, {}, {}, {}], got {}", model, channels_, image_size_,
             image_size_, images);
}

}  // namespace weft::models
