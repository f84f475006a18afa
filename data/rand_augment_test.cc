#include "data/rand_augment.h"

#include <catch2/catch.hpp>

#include "data/fixtures.h"

namespace weft::data {
namespace {

// CRC-32 of PIL's result for torchvision's operation at magnitudes 3, 9 and 30, of signed ones
// first with the positive and then with the negated parameter.
struct Recorded {
  Operation operation;
  std::vector<uint32_t> checksums;
};

const Recorded kRecorded[] = {
    {Operation::kIdentity, {0xa843f737, 0xa843f737, 0xa843f737}},
    {Operation::kShearX, {0xd1fd9b36, 0xd7b55f47, 0xdb42ab82, 0x9ebb9eff, 0x9701d443, 0xcbc3937c}},
    {Operation::kShearY, {0x91ba98c1, 0xbb22a142, 0x12b1168, 0xdb429799, 0xd75746d8, 0x4ebcc76f}},
    {Operation::kTranslateX,
     {0xa843f737, 0xa843f737, 0xbdb32b1f, 0x6ff2ca8e, 0x91393c61, 0xa0e8fecf}},
    {Operation::kTranslateY,
     {0x9ed0fb22, 0xeb10fd9f, 0x7b761d26, 0xb8471410, 0x4820b057, 0x85dca04f}},
    {Operation::kRotate, {0x8a516d3, 0xa97b6f0c, 0x77619e27, 0x14f0478d, 0x4ec94753, 0xfc0b519f}},
    {Operation::kBrightness,
     {0xaa69503d, 0xdf8671fa, 0x6eb0904e, 0x5779d698, 0xd0e78fbf, 0xa429f935}},
    {Operation::kColor, {0xea277651, 0xbfa47f36, 0x8b2fbea8, 0x61a1fe64, 0x335be89e, 0xa4669bf5}},
    {Operation::kContrast,
     {0xc1bf83f0, 0x8953cfaa, 0x57fd82e9, 0xaa189185, 0xa34807a6, 0x928cbada}},
    {Operation::kSharpness,
     {0xb80ce62, 0xbb75ab46, 0x1a0aa716, 0xf9a7b772, 0x256d3a75, 0xd7f3cd4b}},
    {Operation::kPosterize, {0xa843f737, 0x61f6b8f, 0x5c4bf92e}},
    {Operation::kSolarize, {0xa843f737, 0xa843f737, 0xa19afe44}},
    {Operation::kAutoContrast, {0xb2370fa5, 0xb2370fa5, 0xb2370fa5}},
    {Operation::kEqualize, {0xd4ba7271, 0xd4ba7271, 0xd4ba7271}},
};

TEST_CASE("every operation gives PIL's pixels") {
  Image image = formula_image(23, 19);
  for (uint8_t& byte : image.pixels) byte = static_cast<uint8_t>(byte / 2 + 40);
  REQUIRE(std::size(kRecorded) == kOperations);
  for (const Recorded& recorded : kRecorded) {
    size_t i = 0;
    for (const int magnitude : {3, 9, 30}) {
      const double parameter = operation_parameter(recorded.operation, magnitude, 23, 19);
      for (const double sign : {1.0, -1.0}) {
        if (sign < 0 && !is_signed(recorded.operation)) continue;
        CAPTURE(static_cast<int>(recorded.operation), magnitude, sign);
        CHECK(checksum(apply_operation(image, recorded.operation, sign * parameter)) ==
              recorded.checksums.at(i++));
      }
    }
  }
}

TEST_CASE("magnitudes are torchvision's") {
  CHECK(operation_parameter(Operation::kTranslateX, 30, 32, 64) == 29);  // 150 / 331 * 64, cut
  CHECK(operation_parameter(Operation::kTranslateY, 30, 32, 64) == 14);
  CHECK(operation_parameter(Operation::kPosterize, 9, 32, 32) == 7);
  CHECK(operation_parameter(Operation::kPosterize, 30, 32, 32) == 4);
  CHECK(operation_parameter(Operation::kRotate, 9, 32, 32) == Approx(9));
  CHECK(operation_parameter(Operation::kSolarize, 9, 32, 32) == Approx(178.5));
  CHECK(error_of([] { operation_parameter(Operation::kRotate, 31, 32, 32); }) ==
        "RandAugment: magnitude must be 0 to 30, got 31");
}

TEST_CASE("the choice follows the random numbers") {
  const Image image = formula_image(32, 32);
  const auto augmented = [&](uint64_t stream, int count) {
    Philox random(5, stream);
    return rand_augment(image, count, 9, random);
  };
  CHECK(augmented(1, 0) == image);
  CHECK(augmented(1, 2) == augmented(1, 2));
  int different = 0;
  for (uint64_t stream = 0; stream < 50; ++stream) different += augmented(stream, 2) != image;
  CHECK(different >= 40);
}

}  // namespace
}  // namespace weft::data
