// From an image to the floats a model reads: resize, crop, flip, augment, normalise.
//
// Everything random takes a Philox reader, keyed by (seed, epoch, sample): what happens to a sample
// does not depend on workers, batches or order.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/philox.h"
#include "data/dataset.h"
#include "data/image.h"
#include "data/random.h"

namespace weft::data {

enum class Filter { kBilinear, kBicubic };  // bicubic: a = -1/2, Keys 1981
constexpr std::string_view name(Filter filter) {
  return filter == Filter::kBilinear ? "bilinear" : "bicubic";
}

/// Resamples to height x width with the filter widened by the reduction, so that shrinking does not
/// alias. The same bits as Image.resize of Pillow 10: horizontal pass first, 22-bit fixed-point
/// weights, 8-bit intermediate.
Image resize(const Image& image, int height, int width, Filter filter);

struct Size {
  int height = 0, width = 0;
};
struct Window {
  int top = 0, left = 0, height = 0, width = 0;
};
/// A window of the resized image. The rest is not computed: a thin image may become a huge one.
Image resize(const Image& image, const Size& size, const Window& window, Filter filter);

/// The size at which the shorter side is `side`; the longer is rounded down.
Size shorter_side_size(const Image& image, int side);
/// The height x width window whose upper left corner is (top, left); black outside the image.
Image crop(const Image& image, int top, int left, int height, int width);
/// The window in the middle of an image of that size, and one at a uniformly random place inside
/// it; the image must be at least as large.
Window centre_window(const Size& image, int height, int width);
Window random_window(const Size& image, int height, int width, Philox& random);
/// Moves the content by up to `reach` pixels along each axis: padding, then a random crop.
Image random_shift(const Image& image, int reach, Philox& random);

Image flip_horizontal(const Image& image);

/// values[256 c + pixel] = (pixel / 255 - mean[c]) / std[c], of the three channels.
void normalization_table(const Normalization& normalization, float* values);
/// out[c][y][x] = (pixel / 255 - mean[c]) / std[c].
void normalize(const Image& image, const Normalization& normalization, float* out);

enum class Fit {
  kStretch,      // resize to `resize` x `resize`, then crop size x size
  kShorterSide,  // resize the shorter side to `resize`, then crop size x size
};
constexpr std::string_view name(Fit fit) {
  return fit == Fit::kStretch ? "stretch" : "shorter-side";
}

/// How any image becomes a [3, size, size] input, in training and evaluation alike.
struct Preprocess {
  int size = 32;
  Fit fit = Fit::kStretch;
  int resize = 0;  // 0 means `size`
  Filter filter = Filter::kBilinear;
  Normalization normalization = {};
};

/// What training changes at random. Applied in this order.
struct Augmentation {
  bool random_crop = false;  // crops at random instead of from the centre
  int shift = 0;             // pixels
  bool flip = false;         // left-right, with probability 1/2
  /// With `flip`, which images are mirrored is drawn in the first epoch alone and changes in every
  /// other: two epochs in a row show each image both ways (Jordan, arXiv:2404.00498, section 3.6).
  bool alternate_flip = false;
  int rand_augment = 0;  // RandAugment operations per image
  int magnitude = 9;     // of RandAugment, 0..30
  double erase = 0;      // probability of random erasing
  double mixup = 0;      // alpha of the Beta distribution, 0 for none
  double cutmix = 0;     // alpha; with mixup too, each batch takes one of the two at random

  bool mixes() const { return mixup > 0 || cutmix > 0; }
};

/// Fits, augments and normalises one image into 3 * size * size floats at `out`.
void prepare_image(const Image& image, const Preprocess& preprocess,
                   const Augmentation& augmentation, const SampleKey& key, float* out);
/// The same, yet to be normalised: 3 * size * size bytes, a plane for each channel. Returns the
/// rectangle that is to be 0 after that.
Window prepare_bytes(const Image& image, const Preprocess& preprocess,
                     const Augmentation& augmentation, const SampleKey& key, uint8_t* out);
/// Without augmentation.
void prepare_image(const Image& image, const Preprocess& preprocess, float* out);

}  // namespace weft::data
