#include "data/transforms.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "data/fixtures.h"

namespace weft::data {
namespace {

TEST_CASE("crops copy the window and pad with black") {
  const Image image = formula_image(4, 5);
  const Image inner = crop(image, 1, 2, 2, 3);
  for (int y = 0; y < 2; ++y) {
    for (int x = 0; x < 3; ++x) {
      for (int c = 0; c < 3; ++c) CHECK(inner.at(y, x)[c] == image.at(y + 1, x + 2)[c]);
    }
  }
  const Image outer = crop(image, -1, -2, 7, 9);
  for (int y = 0; y < 7; ++y) {
    for (int x = 0; x < 9; ++x) {
      const bool inside = y >= 1 && y < 5 && x >= 2 && x < 7;
      for (int c = 0; c < 3; ++c) {
        CHECK(outer.at(y, x)[c] == (inside ? image.at(y - 1, x - 2)[c] : 0));
      }
    }
  }
  CHECK(crop(image, 100, 100, 2, 2) == Image(2, 2));
  CHECK(crop(image, -100, 3, 2, 2) == Image(2, 2));
  CHECK(error_of([&] { crop(image, 0, 0, 0, 2); }) == "crop: size must be positive, got 0 x 2");
}

namespace {

Image crop(const Image& image, const Window& window) {
  return crop(image, window.top, window.left, window.height, window.width);
}
Image centre_crop(const Image& image, int height, int width) {
  return crop(image, centre_window({image.height, image.width}, height, width));
}
Image random_crop(const Image& image, int height, int width, Philox& random) {
  return crop(image, random_window({image.height, image.width}, height, width, random));
}

}  // namespace

TEST_CASE("the centre crop rounds half a pixel to even, as torchvision") {
  const Image image = formula_image(9, 8);
  CHECK(centre_crop(image, 4, 4) == crop(image, 2, 2, 4, 4));  // (9 - 4) / 2 = 2.5 -> 2
  CHECK(centre_crop(image, 2, 8) == crop(image, 4, 0, 2, 8));  // (9 - 2) / 2 = 3.5 -> 4
  CHECK(centre_crop(image, 11, 8) == crop(image, -1, 0, 11, 8));
}

TEST_CASE("random crops and shifts reach every place and no other") {
  const Image image = formula_image(5, 4);
  Philox random(3);
  std::set<std::vector<uint8_t>> crops, shifts, expected_crops, expected_shifts;
  for (int top = 0; top <= 2; ++top) {
    for (int left = 0; left <= 1; ++left) {
      expected_crops.insert(crop(image, top, left, 3, 3).pixels);
    }
  }
  for (int top = -2; top <= 2; ++top) {
    for (int left = -2; left <= 2; ++left) {
      expected_shifts.insert(crop(image, top, left, 5, 4).pixels);
    }
  }
  for (int i = 0; i < 500; ++i) {
    crops.insert(random_crop(image, 3, 3, random).pixels);
    shifts.insert(random_shift(image, 2, random).pixels);
  }
  CHECK(crops == expected_crops);
  CHECK(shifts == expected_shifts);
  CHECK(error_of([&] { random_crop(image, 6, 4, random); }) ==
        "random_window: a 6 x 4 window does not fit in an image of 5 x 4");
}

TEST_CASE("a window of a resized image has the bits of the whole, and costs its own size") {
  const Image image = formula_image(31, 17);
  Philox random(5);
  for (int i = 0; i < 200; ++i) {
    const Size size{1 + static_cast<int>(random.below(60)), 1 + static_cast<int>(random.below(60))};
    const Window window = random_window(size, 1 + static_cast<int>(random.below(size.height)),
                                        1 + static_cast<int>(random.below(size.width)), random);
    const Filter filter = i % 2 == 0 ? Filter::kBilinear : Filter::kBicubic;
    INFO(size.height << " x " << size.width);
    CHECK(resize(image, size, window, filter) ==
          crop(resize(image, size.height, size.width, filter), window));
  }
  // The whole would have 7 GB.
  Image thin(1, 1 << 20);
  std::vector<float> found(3 * 48 * 48);
  prepare_image(thin, {.size = 48, .fit = Fit::kShorterSide}, found.data());
  CHECK(error_of([] { shorter_side_size(Image(1, 1 << 20), 1 << 20); }) ==
        "resize: an image of 1 x 1048576 would have a side of 1099511627776 where the other has "
        "1048576");
}

TEST_CASE("flipping reverses rows and undoes itself") {
  const Image image = formula_image(3, 5);
  const Image flipped = flip_horizontal(image);
  for (int x = 0; x < 5; ++x) CHECK(flipped.at(2, x)[1] == image.at(2, 4 - x)[1]);
  CHECK(flip_horizontal(flipped) == image);
}

TEST_CASE("normalisation goes to planes") {
  Image image(1, 2);
  image.pixels = {0, 51, 102, 153, 204, 255};
  float out[6];
  normalize(image, {{0.5f, 0, 0.25f}, {0.5f, 1, 2}}, out);
  const float expected[] = {-1, 0.2f, 0.2f, 0.8f, 0.075f, 0.375f};
  for (int i = 0; i < 6; ++i) CHECK(out[i] == Approx(expected[i]).epsilon(1e-6));
}

TEST_CASE("erasing blanks one rectangle of the promised area") {
  constexpr int kSide = 32;
  Image white(kSide, kSide);
  std::ranges::fill(white.pixels, 255);
  double smallest = 1, largest = 0;
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<float> image(3 * kSide * kSide);
    prepare_image(white, {.size = kSide}, {.erase = 1}, {.seed = 7, .sample = trial}, image.data());
    int top = kSide, bottom = -1, left = kSide, right = -1, count = 0;
    for (int y = 0; y < kSide; ++y) {
      for (int x = 0; x < kSide; ++x) {
        const float* pixel = &image[y * kSide + x];
        REQUIRE((pixel[0] == pixel[kSide * kSide] && pixel[0] == pixel[2 * kSide * kSide]));
        if (pixel[0] != 0) continue;
        ++count;
        top = std::min(top, y);
        bottom = std::max(bottom, y);
        left = std::min(left, x);
        right = std::max(right, x);
      }
    }
    REQUIRE(count > 0);
    REQUIRE(count == (bottom - top + 1) * (right - left + 1));
    const double area = static_cast<double>(count) / (kSide * kSide);
    smallest = std::min(smallest, area);
    largest = std::max(largest, area);
  }
  // 2% and 33%, up to the rounding of both sides to pixels.
  CHECK(smallest > 0.012);
  CHECK(smallest < 0.05);
  CHECK(largest < 0.37);
  CHECK(largest > 0.28);
}

TEST_CASE("preparing an image is its steps in order") {
  const Image image = formula_image(40, 50);
  const Normalization normalization = {{0.4f, 0.5f, 0.6f}, {0.2f, 0.3f, 0.4f}};
  std::vector<float> expected(3 * 24 * 24), found(3 * 24 * 24);

  Preprocess stretch{.size = 24, .normalization = normalization};
  normalize(resize(image, 24, 24, Filter::kBilinear), normalization, expected.data());
  prepare_image(image, stretch, found.data());
  CHECK(found == expected);

  Preprocess cropped{.size = 24,
                     .fit = Fit::kShorterSide,
                     .resize = 30,
                     .filter = Filter::kBicubic,
                     .normalization = normalization};
  normalize(crop(resize(image, 30, 37, Filter::kBicubic), 3, 6, 24, 24), normalization,
            expected.data());
  prepare_image(image, cropped, found.data());
  CHECK(found == expected);

  stretch.resize = 30;
  normalize(crop(resize(image, 30, 30, Filter::kBilinear), 3, 3, 24, 24), normalization,
            expected.data());
  prepare_image(image, stretch, found.data());
  CHECK(found == expected);

  const Augmentation augmentation{.random_crop = true, .shift = 3};
  Philox reference = random_stream(11, Purpose::kAugment, 2, 5);
  const Image window = random_crop(resize(image, 30, 37, Filter::kBicubic), 24, 24, reference);
  normalize(random_shift(window, 3, reference), normalization, expected.data());
  prepare_image(image, cropped, augmentation, {11, 2, 5}, found.data());
  CHECK(found == expected);

  cropped.resize = 20;
  CHECK(error_of([&] { prepare_image(image, cropped, found.data()); }) ==
        "preprocessing: cannot crop 24 pixels from a shorter side of 20");
}

}  // namespace
}  // namespace weft::data
