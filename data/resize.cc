// Separable resampling with PIL's fixed-point arithmetic.
#include <algorithm>
#include <cmath>
#include <limits>

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

/// Of the outputs [begin, begin + count) of `out`.
Weights weights_for(int in, int out, int begin, int count_of_outputs, Filter filter) {
  const double scale = static_cast<double>(in) / out;
  const double widening = std::max(scale, 1.0);
  const double support = (filter == Filter::kBilinear ? 1 : 2) * widening;
  Weights result;
  result.stride = static_cast<int>(std::ceil(support)) * 2 + 1;
  result.ranges.resize(count_of_outputs);
  result.weights.resize(static_cast<size_t>(count_of_outputs) * result.stride);
  std::vector<double> exact(result.stride);
  for (int i = 0; i < count_of_outputs; ++i) {
    const double centre = (begin + i + 0.5) * scale;
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

/// Rows [first_row, first_row + rows) of the image, resampled along x.
Image resample_rows(const Image& image, int first_row, int rows, const Weights& weights) {
  const int width = static_cast<int>(weights.ranges.size());
  Image result(rows, width);
  for (int y = 0; y < rows; ++y) {
    for (int x = 0; x < width; ++x) {
      const auto [first, count] = weights.ranges[x];
      const int32_t* w = &weights.weights[x * weights.stride];
      const uint8_t* source = image.at(first_row + y, first);
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

/// The image, whose first row is `first_row` of what the weights speak of, resampled along y.
Image resample_columns(const Image& image, int first_row, const Weights& weights) {
  const int height = static_cast<int>(weights.ranges.size());
  Image result(height, image.width);
  const int row = 3 * image.width;
  std::vector<int32_t> sums(row);
  for (int y = 0; y < height; ++y) {
    const auto [first, count] = weights.ranges[y];
    std::fill(sums.begin(), sums.end(), 1 << (kFractionBits - 1));
    for (int k = 0; k < count; ++k) {
      const uint8_t* source = image.at(first - first_row + k, 0);
      const int32_t w = weights.weights[y * weights.stride + k];
      for (int i = 0; i < row; ++i) sums[i] += source[i] * w;
    }
    uint8_t* target = result.at(y, 0);
    for (int i = 0; i < row; ++i) target[i] = round_to_byte(sums[i]);
  }
  return result;
}

}  // namespace

Image resize(const Image& image, const Size& size, const Window& window, Filter filter) {
  WEFT_CHECK(size.height > 0 && size.width > 0, "resize: size must be positive, got {} x {}",
             size.height, size.width);
  WEFT_CHECK(image.height > 0 && image.width > 0, "resize: the image is empty ({} x {})",
             image.height, image.width);
  WEFT_ASSERT(window.top >= 0 && window.top + window.height <= size.height);
  WEFT_ASSERT(window.left >= 0 && window.left + window.width <= size.width);
  Weights columns;
  int first_row = window.top, rows = window.height;
  if (image.height != size.height) {
    columns = weights_for(image.height, size.height, window.top, window.height, filter);
    first_row = columns.ranges.front().first;
    rows = columns.ranges.back().first + columns.ranges.back().count - first_row;
  }
  const Image wide =
      image.width == size.width
          ? crop(image, first_row, window.left, rows, window.width)
          : resample_rows(image, first_row, rows,
                          weights_for(image.width, size.width, window.left, window.width, filter));
  return image.height == size.height ? wide : resample_columns(wide, first_row, columns);
}

Image resize(const Image& image, int height, int width, Filter filter) {
  return resize(image, {height, width}, {0, 0, height, width}, filter);
}

Size shorter_side_size(const Image& image, int side) {
  const int64_t shorter = std::min(image.height, image.width);
  WEFT_CHECK(shorter > 0, "resize: the image is empty ({} x {})", image.height, image.width);
  const auto scaled = [&](int64_t length) {
    const int64_t result = side * length / shorter;
    WEFT_CHECK(result <= std::numeric_limits<int>::max(),
               "resize: an image of {} x {} would have a side of {} where the other has {}",
               image.height, image.width, result, side);
    return static_cast<int>(result);
  };
  return {scaled(image.height), scaled(image.width)};
}

}  // namespace weft::data
