#include "data/mix.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "data/fixtures.h"
#include "data/random.h"

namespace weft::data {
namespace {

constexpr int kBatch = 3, kSize = 8, kClasses = 4;
constexpr int kImage = 3 * kSize * kSize;

struct Data {
  std::vector<float> images = std::vector<float>(kBatch * kImage);
  std::vector<float> labels = std::vector<float>(kBatch * kClasses);

  Data() {
    std::iota(images.begin(), images.end(), 0.0f);
    one_hot(std::vector<int64_t>{2, 0, 3}, kClasses, labels.data());
  }
  MixedBatch batch() { return {images.data(), labels.data(), kBatch, kSize, kClasses}; }
};

TEST_CASE("one-hot rows") {
  const Data data;
  CHECK(data.labels == std::vector<float>{0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1});
  std::vector<float> row(4);
  CHECK(error_of([&] { one_hot(std::vector<int64_t>{4}, 4, row.data()); }) ==
        "one_hot: label 4 of 4 classes");
}

TEST_CASE("mixup blends each image with the one before") {
  Data data;
  apply(mixup(0.75f), data.batch());
  CHECK(data.labels ==
        std::vector<float>{0, 0, 0.75f, 0.25f, 0.75f, 0, 0.25f, 0, 0.25f, 0, 0, 0.75f});
  for (int k = 0; k < kImage; ++k) {
    REQUIRE(data.images[k] == 0.75f * k + 0.25f * (2 * kImage + k));
    REQUIRE(data.images[kImage + k] == 0.75f * (kImage + k) + 0.25f * k);
  }
}

TEST_CASE("cutmix moves one rectangle and weighs labels by its area") {
  Philox random(9);
  for (int trial = 0; trial < 50; ++trial) {
    const Data before;
    Data data;
    apply(cutmix(0.6f, kSize, random), data.batch());
    for (int i = 0; i < kBatch; ++i) {
      const int previous = (i + kBatch - 1) % kBatch;
      int moved = 0;
      for (int k = 0; k < kImage; ++k) {
        const float value = data.images[i * kImage + k];
        const bool is_moved = value == before.images[previous * kImage + k];
        REQUIRE((is_moved || value == before.images[i * kImage + k]));
        moved += is_moved;
      }
      // Half a side is trunc(sqrt(0.4) * 8 / 2) = 2: at most 4 x 4 of 8 x 8, in three channels.
      REQUIRE(moved <= 3 * 16);
      for (int c = 0; c < kClasses; ++c) {
        const float share = static_cast<float>(moved) / kImage;
        REQUIRE(data.labels[i * kClasses + c] ==
                Approx((1 - share) * before.labels[i * kClasses + c] +
                       share * before.labels[previous * kClasses + c]));
      }
    }
  }
}

TEST_CASE("a batch of one is left as it is") {
  Data data;
  const Data before;
  Philox random(2);
  const MixedBatch alone = {data.images.data(), data.labels.data(), 1, kSize, kClasses};
  apply(mixup(0.3f), alone);
  apply(cutmix(0.3f, kSize, random), alone);
  CHECK(data.images == before.images);
  CHECK(data.labels == before.labels);
}

TEST_CASE("mix takes each of the two about half the time") {
  int blended = 0;
  for (int trial = 0; trial < 200; ++trial) {
    Data data;
    Philox random(4, trial);
    apply(draw_mixing(1.0, 1.0, kSize, random), data.batch());
    // CutMix keeps whole numbers.
    bool is_blend = false;
    for (const float value : data.images) is_blend |= value != std::floor(value);
    blended += is_blend;
  }
  // Binomial(200, 1/2): five standard deviations are 35.
  CHECK(std::abs(blended - 100) < 36);
}

TEST_CASE("Beta(alpha, alpha) has its mean 1/2 and variance 1 / (4 (2 alpha + 1))") {
  for (const double alpha : {0.05, 0.2, 1.0, 4.0}) {
    Philox random(6);
    constexpr int kDraws = 20000;
    double sum = 0, squares = 0;
    for (int i = 0; i < kDraws; ++i) {
      const double x = beta_variable(random, alpha);
      REQUIRE((x >= 0 && x <= 1));
      sum += x - 0.5;
      squares += (x - 0.5) * (x - 0.5);
    }
    const double variance = 1 / (4 * (2 * alpha + 1));
    CAPTURE(alpha);
    // Five standard errors. A square lies in [0, 1/4], so its deviation is at most 1/8.
    CHECK(std::abs(sum / kDraws) < 5 * std::sqrt(variance / kDraws));
    CHECK(std::abs(squares / kDraws - variance) < 5 * 0.125 / std::sqrt(kDraws));
  }
}

}  // namespace
}  // namespace weft::data
