#include "data/rand_augment.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "data/random.h"

namespace weft::data {
namespace {

using Table = std::array<uint8_t, 256>;

template <class F>
Image map_bytes(const Image& image, F&& f) {
  Image result = image;
  for (uint8_t& byte : result.pixels) byte = f(byte);
  return result;
}

// Each channel through its own table, made from the channel's histogram.
template <class F>
Image map_channels(const Image& image, F&& table_of) {
  Image result = image;
  for (int c = 0; c < 3; ++c) {
    std::array<int64_t, 256> histogram{};
    for (size_t i = c; i < image.pixels.size(); i += 3) ++histogram[image.pixels[i]];
    const Table table = table_of(histogram);
    for (size_t i = c; i < result.pixels.size(); i += 3) result.pixels[i] = table[result.pixels[i]];
  }
  return result;
}

Table identity_table() {
  Table table;
  for (int i = 0; i < 256; ++i) table[i] = static_cast<uint8_t>(i);
  return table;
}

// out(x, y) = in(a x + b y + c, d x + e y + f) at pixel centres, nearest pixel, black outside; in
// PIL's 16.16 fixed point, which decides between neighbours equally near.
Image affine(const Image& image, const std::array<double, 6>& m) {
  const auto fixed = [](double v) { return static_cast<int64_t>(std::floor(v * 65536.0 + 0.5)); };
  const int64_t dx_u = fixed(m[0]), dy_u = fixed(m[1]), dx_v = fixed(m[3]), dy_v = fixed(m[4]);
  int64_t row_u = fixed(m[2] + m[0] * 0.5 + m[1] * 0.5);
  int64_t row_v = fixed(m[5] + m[3] * 0.5 + m[4] * 0.5);
  Image result(image.height, image.width);
  for (int y = 0; y < image.height; ++y, row_u += dy_u, row_v += dy_v) {
    int64_t u = row_u, v = row_v;
    for (int x = 0; x < image.width; ++x, u += dx_u, v += dx_v) {
      const int64_t column = u >> 16, row = v >> 16;
      if (column < 0 || column >= image.width || row < 0 || row >= image.height) continue;
      std::copy_n(image.at(static_cast<int>(row), static_cast<int>(column)), 3, result.at(y, x));
    }
  }
  return result;
}

Image rotate(const Image& image, double degrees) {
  const double angle = degrees * std::numbers::pi / 180;
  const double c = std::cos(angle), s = std::sin(angle);
  const double x = image.width / 2.0, y = image.height / 2.0;
  return affine(image, {c, -s, x - c * x + s * y, s, c, y - s * x - c * y});
}

// plain + factor * (image - plain), towards zero, in PIL's single precision.
Image blend(const Image& plain, const Image& image, double factor) {
  Image result(image.height, image.width);
  const auto alpha = static_cast<float>(factor);
  for (size_t i = 0; i < image.pixels.size(); ++i) {
    const float value = static_cast<float>(plain.pixels[i]) +
                        alpha * static_cast<float>(image.pixels[i] - plain.pixels[i]);
    result.pixels[i] = static_cast<uint8_t>(std::clamp(value, 0.0f, 255.0f));
  }
  return result;
}

// ITU-R 601-2 luma in 16-bit fixed point.
uint8_t luma(const uint8_t* rgb) {
  return static_cast<uint8_t>((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
}

Image grey_of(const Image& image) {
  Image grey(image.height, image.width);
  for (size_t i = 0; i < image.pixels.size(); i += 3) {
    std::fill_n(&grey.pixels[i], 3, luma(&image.pixels[i]));
  }
  return grey;
}

Image mean_grey_of(const Image& image) {
  int64_t sum = 0;
  for (size_t i = 0; i < image.pixels.size(); i += 3) sum += luma(&image.pixels[i]);
  const double mean = static_cast<double>(sum) / (static_cast<double>(image.pixels.size()) / 3);
  Image grey(image.height, image.width);
  std::fill(grey.pixels.begin(), grey.pixels.end(), static_cast<uint8_t>(mean + 0.5));
  return grey;
}

// PIL's SMOOTH: weights 1 around 5, over 13; the border is left as it is.
Image smooth_of(const Image& image) {
  Image result = image;
  for (int y = 1; y + 1 < image.height; ++y) {
    for (int x = 1; x + 1 < image.width; ++x) {
      for (int c = 0; c < 3; ++c) {
        int sum = 4 * image.at(y, x)[c];
        for (int dy = -1; dy <= 1; ++dy) {
          for (int dx = -1; dx <= 1; ++dx) sum += image.at(y + dy, x + dx)[c];
        }
        result.at(y, x)[c] = static_cast<uint8_t>((2 * sum + 13) / 26);
      }
    }
  }
  return result;
}

Table stretching_table(const std::array<int64_t, 256>& histogram) {
  Table table = identity_table();
  int low = 0, high = 255;
  while (low < 255 && histogram[low] == 0) ++low;
  while (high > 0 && histogram[high] == 0) --high;
  if (high <= low) return table;
  const double scale = 255.0 / (high - low), offset = -low * scale;
  for (int i = 0; i < 256; ++i) {
    table[i] = static_cast<uint8_t>(std::clamp(static_cast<int>(i * scale + offset), 0, 255));
  }
  return table;
}

Table equalizing_table(const std::array<int64_t, 256>& histogram) {
  int64_t total = 0, last = 0;
  for (const int64_t count : histogram) {
    total += count;
    if (count > 0) last = count;
  }
  const int64_t step = (total - last) / 255;
  if (step == 0) return identity_table();
  Table table;
  int64_t seen = step / 2;
  for (int i = 0; i < 256; ++i) {
    table[i] = static_cast<uint8_t>(std::min<int64_t>(seen / step, 255));
    seen += histogram[i];
  }
  return table;
}

}  // namespace

bool is_signed(Operation operation) {
  return operation >= Operation::kShearX && operation <= Operation::kSharpness;
}

double operation_parameter(Operation operation, int magnitude, int height, int width) {
  WEFT_CHECK(magnitude >= 0 && magnitude < kMagnitudes,
             "RandAugment: magnitude must be 0 to {}, got {}", kMagnitudes - 1, magnitude);
  const double fraction = magnitude / (kMagnitudes - 1.0);
  switch (operation) {
    case Operation::kShearX:
    case Operation::kShearY:
      return 0.3 * fraction;
    case Operation::kTranslateX:
      return std::trunc(150.0 / 331.0 * width * fraction);
    case Operation::kTranslateY:
      return std::trunc(150.0 / 331.0 * height * fraction);
    case Operation::kRotate:
      return 30 * fraction;
    case Operation::kBrightness:
    case Operation::kColor:
    case Operation::kContrast:
    case Operation::kSharpness:
      return 0.9 * fraction;
    case Operation::kPosterize:
      return 8 - std::nearbyint(4 * fraction);
    case Operation::kSolarize:
      return 255 - 255 * fraction;
    case Operation::kIdentity:
    case Operation::kAutoContrast:
    case Operation::kEqualize:
      break;
  }
  return 0;
}

Image apply_operation(const Image& image, Operation operation, double parameter) {
  switch (operation) {
    case Operation::kIdentity:
      return image;
    case Operation::kShearX:
      return affine(image, {1, parameter, 0, 0, 1, 0});
    case Operation::kShearY:
      return affine(image, {1, 0, 0, parameter, 1, 0});
    case Operation::kTranslateX:
      return affine(image, {1, 0, -parameter, 0, 1, 0});
    case Operation::kTranslateY:
      return affine(image, {1, 0, 0, 0, 1, -parameter});
    case Operation::kRotate:
      return rotate(image, parameter);
    case Operation::kBrightness:
      return blend(Image(image.height, image.width), image, 1 + parameter);
    case Operation::kColor:
      return blend(grey_of(image), image, 1 + parameter);
    case Operation::kContrast:
      return blend(mean_grey_of(image), image, 1 + parameter);
    case Operation::kSharpness:
      return blend(smooth_of(image), image, 1 + parameter);
    case Operation::kPosterize: {
      const int mask = ~((1 << (8 - static_cast<int>(parameter))) - 1);
      return map_bytes(image, [&](int v) { return static_cast<uint8_t>(v & mask); });
    }
    case Operation::kSolarize:
      return map_bytes(image,
                       [&](int v) { return static_cast<uint8_t>(v < parameter ? v : 255 - v); });
    case Operation::kAutoContrast:
      return map_channels(image, stretching_table);
    case Operation::kEqualize:
      return map_channels(image, equalizing_table);
  }
  WEFT_ASSERT(false);
  return image;
}

Image rand_augment(const Image& image, int count, int magnitude, Philox& random) {
  Image result = image;
  for (int i = 0; i < count; ++i) {
    const auto operation = static_cast<Operation>(random.below(kOperations));
    double parameter = operation_parameter(operation, magnitude, image.height, image.width);
    if (is_signed(operation) && chance(random, 0.5)) parameter = -parameter;
    result = apply_operation(result, operation, parameter);
  }
  return result;
}

}  // namespace weft::data
