// Separable resampling with PIL's fixed-point arithmetic.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "data/transforms.h"

namespace weft::data {
namespace {

constexpr int kFractionBits = 32 - 8 - 2;  // 8 for the pixel, 2 for sums of negative lobes

double bilinear(double x) { return std::max(0.0, 1 - std::abs(x)); }

double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

// Output i is the sum over k < count of weights[i * stride + k] * input[first + k].
struct Weights {
  struct Range {
    int first;
    int count;
  };
  int stride = 0;
  std::vector<Range> ranges;
  std::vector<int32_t> weights;  // times 2^kFractionBits
};

Weights weights_for(int in, int out, Filter filter) {
  const double scale = static_cast<double>(in) / out;
  const double widening = std::max(scale, 1.0);
  const double support = (filter == Filter::kBilinear ? 1 : 2) * widening;
  Weights result;
  result.stride = static_cast<int>(std::ceil(support)) * 2 + 1;
  result.ranges.resize(out);
  result.weights.resize(static_cast<size_t>(out) * result.stride);
  std::vector<double> exact(result.stride);
  for (int i = 0; i < out; ++i) {
    const double centre = (i + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(centre - support + 0.5));
    const int count = std::min(in, static_cast<int>(centre + support + 0.5)) - first;
    double sum = 0;
    for (int k = 0; k < count; ++k) {
      const double x = (k + first - centre + 0.5) * (1 / widening);
      exact[k] = filter == Filter::kBilinear ? bilinear(x) : bicubic(x);
      sum += exact[k];
    }
    result.ranges[i] = {first, count};
    for (int k = 0; k < count; ++k) {
      const double fixed = exact[k] * (1 / sum) * (1 << kFractionBits);
      result.weights[i * result.stride + k] =
          static_cast<int32_t>(fixed < 0 ? fixed - 0.5 : fixed + 0.5);
    }
  }
  return result;
}

uint8_t round_to_byte(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kFractionBits, 0, 255));
}

Image resize_width(const Image& image, int width, Filter filter) {
  const Weights weights = weights_for(image.width, width, filter);
  Image result(image.height, width);
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < width; ++x) {
      const auto [first, count] = weights.ranges[x];
      const int32_t* w = &weights.weights[x * weights.stride];
      const uint8_t* source = image.at(y, first);
      int32_t sum[3] = {1 << (kFractionBits - 1), 1 << (kFractionBits - 1),
                        1 << (kFractionBits - 1)};
      for (int k = 0; k < count; ++k) {
        for (int c = 0; c < 3; ++c) sum[c] += source[3 * k + c] * w[k];
      }
      for (int c = 0; c < 3; ++c) result.at(y, x)[c] = round_to_byte(sum[c]);
    }
  }
  return result;
}

Image resize_height(const Image& image, int height, Filter filter) {
  const Weights weights = weights_for(image.height, height, filter);
  Image result(height, image.width);
  const int row = 3 * image.width;
  std::vector<int32_t> sums(row);
  for (int y = 0; y < height; ++y) {
    const auto [first, count] = weights.ranges[y];
    std::fill(sums.begin(), sums.end(), 1 << (kFractionBits - 1));
    for (int k = 0; k < count; ++k) {
      const uint8_t* source = image.at(first + k, 0);
      const int32_t w = weights.weights[y * weights.stride + k];
      for (int i = 0; i < row; ++i) sums[i] += source[i] * w;
    }
    uint8_t* target = result.at(y, 0);
    for (int i = 0; i < row; ++i) target[i] = round_to_byte(sums[i]);
  }
  return result;
}

}  // namespace

Image resize(const Image& image, int height, int width, Filter filter) {
  WEFT_CHECK(height > 0 && width > 0, "resize: size must be positive, got {} x {}", height, width);
  WEFT_CHECK(image.height > 0 && image.width > 0, "resize: the image is empty ({} x {})",
             image.height, image.width);
  if (image.width == width && image.height == height) return image;
  if (image.width == width) return resize_height(image, height, filter);
  Image wide = resize_width(image, width, filter);
  return wide.height == height ? wide : resize_height(wide, height, filter);
}

Image resize_shorter_side(const Image& image, int side, Filter filter) {
  const int64_t shorter = std::min(image.height, image.width);
  WEFT_CHECK(shorter > 0, "resize_shorter_side: the image is empty");
  const auto scaled = [&](int64_t length) { return static_cast<int>(side * length / shorter); };
  return resize(image, scaled(image.height), scaled(image.width), filter);
}

}  // namespace weft::data
