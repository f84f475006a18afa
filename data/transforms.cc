#include "data/transforms.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "data/rand_augment.h"
#include "data/random.h"

namespace weft::data {

Image crop(const Image& image, int top, int left, int height, int width) {
  WEFT_CHECK(height > 0 && width > 0, "crop: size must be positive, got {} x {}", height, width);
  Image result(height, width);
  const int first = std::max(0, -left), last = std::min(width, image.width - left);
  for (int y = std::max(0, -top); y < std::min(height, image.height - top) && first < last; ++y) {
    std::memcpy(result.at(y, first), image.at(top + y, left + first), size_t{3} * (last - first));
  }
  return result;
}

Window centre_window(const Size& image, int height, int width) {
  // torchvision rounds the corner to nearest even; so does lrint.
  const auto corner = [](int outer, int inner) {
    return static_cast<int>(std::lrint((outer - inner) / 2.0));
  };
  return {corner(image.height, height), corner(image.width, width), height, width};
}

Window random_window(const Size& image, int height, int width, Philox& random) {
  WEFT_CHECK(image.height >= height && image.width >= width,
             "random_window: a {} x {} window does not fit in an image of {} x {}", height, width,
             image.height, image.width);
  const auto top = static_cast<int>(random.below(image.height - height + 1));
  const auto left = static_cast<int>(random.below(image.width - width + 1));
  return {top, left, height, width};
}

Image random_shift(const Image& image, int reach, Philox& random) {
  const auto offset = [&] { return static_cast<int>(random.below(2 * reach + 1)) - reach; };
  const int top = offset(), left = offset();
  return crop(image, top, left, image.height, image.width);
}

Image flip_horizontal(const Image& image) {
  Image result(image.height, image.width);
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      std::copy_n(image.at(y, x), 3, result.at(y, image.width - 1 - x));
    }
  }
  return result;
}

void normalization_table(const Normalization& normalization, float* values) {
  for (int c = 0; c < 3; ++c) {
    for (int i = 0; i < 256; ++i) {
      values[256 * c + i] =
          (static_cast<float>(i) / 255.0f - normalization.mean[c]) / normalization.std[c];
    }
  }
}

void normalize(const Image& image, const Normalization& normalization, float* out) {
  const size_t plane = static_cast<size_t>(image.height) * image.width;
  // A byte has 256 values: the divisions happen once for each.
  float values[3 * 256];
  normalization_table(normalization, values);
  for (int c = 0; c < 3; ++c) {
    const uint8_t* source = image.pixels.data() + c;
    for (size_t p = 0; p < plane; ++p) out[c * plane + p] = values[256 * c + source[3 * p]];
  }
}

namespace {

/// Zhong et al., "Random Erasing Data Augmentation", 2017, as torchvision's: draws a rectangle of
/// 2-33% of the area and aspect ratio 0.3-3.3, or one without pixels where none fits.
Window random_erasing(int height, int width, Philox& random) {
  const double area = static_cast<double>(height) * width;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * random.uniform(0.02f, 0.33f);
    const double ratio = std::exp(random.uniform(std::log(0.3f), std::log(3.3f)));
    const auto h = static_cast<int>(std::lrint(std::sqrt(target * ratio)));
    const auto w = static_cast<int>(std::lrint(std::sqrt(target / ratio)));
    if (h >= height || w >= width) continue;
    const auto top = static_cast<int>(random.below(height - h + 1));
    const auto left = static_cast<int>(random.below(width - w + 1));
    return {top, left, h, w};
  }
  return {};
}

// The size x size window of `image`; `random` null takes it from the centre.
Image fit(const Image& image, const Preprocess& preprocess, Philox* random) {
  const int size = preprocess.size;
  const int side = preprocess.resize > 0 ? preprocess.resize : size;
  WEFT_CHECK(side >= size, "preprocessing: cannot crop {} pixels from a shorter side of {}", size,
             side);
  const bool stretches = preprocess.fit == Fit::kStretch;
  if (stretches && side == size) return resize(image, size, size, preprocess.filter);
  const Size scaled = stretches ? Size{side, side} : shorter_side_size(image, side);
  const Window window =
      random ? random_window(scaled, size, size, *random) : centre_window(scaled, size, size);
  return resize(image, scaled, window, preprocess.filter);
}

void erase(float* image, int height, int width, const Window& window) {
  for (int c = 0; c < 3; ++c) {
    for (int y = window.top; y < window.top + window.height; ++y) {
      std::fill_n(image + (static_cast<size_t>(c) * height + y) * width + window.left, window.width,
                  0.0f);
    }
  }
}

bool is_mirrored(const Augmentation& augmentation, const SampleKey& key, Philox& random) {
  if (!augmentation.alternate_flip) return chance(random, 0.5);
  Philox first_epoch = random_stream(key.seed, Purpose::kMirror, 0, key.sample);
  return chance(first_epoch, 0.5) != (key.epoch % 2 == 1);
}

/// Fitted and changed at random, with the rectangle that is to be erased.
std::pair<Image, Window> augment(const Image& image, const Preprocess& preprocess,
                                 const Augmentation& augmentation, const SampleKey& key) {
  Philox random = random_stream(key.seed, Purpose::kAugment, key.epoch, key.sample);
  Image fitted = fit(image, preprocess, augmentation.random_crop ? &random : nullptr);
  if (augmentation.shift > 0) fitted = random_shift(fitted, augmentation.shift, random);
  if (augmentation.flip && is_mirrored(augmentation, key, random)) {
    fitted = flip_horizontal(fitted);
  }
  if (augmentation.rand_augment > 0) {
    fitted = rand_augment(fitted, augmentation.rand_augment, augmentation.magnitude, random);
  }
  Window erased;
  if (augmentation.erase > 0 && chance(random, augmentation.erase)) {
    erased = random_erasing(fitted.height, fitted.width, random);
  }
  return {std::move(fitted), erased};
}

}  // namespace

void prepare_image(const Image& image, const Preprocess& preprocess,
                   const Augmentation& augmentation, const SampleKey& key, float* out) {
  const auto [fitted, erased] = augment(image, preprocess, augmentation, key);
  normalize(fitted, preprocess.normalization, out);
  erase(out, fitted.height, fitted.width, erased);
}

Window prepare_bytes(const Image& image, const Preprocess& preprocess,
                     const Augmentation& augmentation, const SampleKey& key, uint8_t* out) {
  const auto [fitted, erased] = augment(image, preprocess, augmentation, key);
  const size_t plane = static_cast<size_t>(fitted.height) * fitted.width;
  for (int c = 0; c < 3; ++c) {
    const uint8_t* source = fitted.pixels.data() + c;
    for (size_t p = 0; p < plane; ++p) out[c * plane + p] = source[3 * p];
  }
  return erased;
}

void prepare_image(const Image& image, const Preprocess& preprocess, float* out) {
  normalize(fit(image, preprocess, nullptr), preprocess.normalization, out);
}

}  // namespace weft::data
