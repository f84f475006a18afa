#include <catch2/catch.hpp>

#include "data/fixtures.h"
#include "data/transforms.h"

namespace weft::data {
namespace {

using Bytes = std::vector<uint8_t>;

// The numbers come from Pillow 10.4: formula_image(h, w).resize((width, height), filter).
TEST_CASE("shrinking averages as PIL does") {
  const Image image = formula_image(5, 7);
  CHECK(resize(image, 3, 4, Filter::kBilinear).pixels ==
        Bytes{47,  127, 166, 112, 117, 147, 167, 151, 114, 149, 114, 111,
              146, 116, 109, 155, 109, 157, 127, 92,  152, 134, 135, 117,
              176, 91,  127, 135, 130, 168, 126, 108, 141, 122, 87,  176});
  CHECK(resize(image, 3, 4, Filter::kBicubic).pixels ==
        Bytes{37,  131, 169, 115, 116, 145, 171, 155, 110, 150, 113, 108,
              152, 116, 104, 160, 106, 159, 125, 85,  159, 128, 142, 113,
              180, 87,  124, 134, 138, 172, 124, 108, 139, 120, 81,  181});
}

TEST_CASE("enlarging interpolates as PIL does") {
  const Image image = formula_image(2, 3);
  CHECK(resize(image, 4, 5, Filter::kBilinear).pixels ==
        Bytes{0,  83,  166, 15, 98,  181, 37,  120, 203, 59,  142, 225, 74,  157, 240,
              15, 98,  181, 31, 115, 174, 55,  140, 162, 78,  127, 189, 94,  119, 207,
              44, 127, 210, 62, 149, 159, 90,  181, 80,  117, 98,  117, 135, 42,  142,
              59, 142, 225, 78, 166, 151, 107, 201, 39,  136, 83,  81,  155, 4,   109});
  CHECK(resize(image, 4, 5, Filter::kBicubic).pixels ==
        Bytes{0,  75,  156, 5,  87,  179, 31,  113, 217, 56,  152, 243, 70,  174, 254,
              11, 92,  179, 24, 110, 173, 51,  137, 169, 79,  132, 197, 94,  127, 216,
              44, 126, 223, 61, 156, 161, 93,  184, 73,  124, 90,  108, 142, 33,  141,
              60, 143, 246, 80, 179, 155, 113, 208, 25,  147, 70,  62,  166, 0,   103});
}

struct Recorded {
  int height, width;
  uint32_t bilinear, bicubic;
};

const Recorded kRecorded[] = {
    {224, 224, 0x2a990b3d, 0x45299526}, {13, 61, 0xd46035f0, 0x0e3cd768},
    {61, 20, 0xbaa38508, 0x4b7b0bf6},   {30, 47, 0x694c4cf2, 0x3a8a5db8},
    {1, 1, 0xc1e6a15f, 0xc1e6a15f},
};

TEST_CASE("sizes up and down give PIL's checksums") {
  const Image image = formula_image(61, 47);
  for (const Recorded& recorded : kRecorded) {
    CAPTURE(recorded.height, recorded.width);
    CHECK(checksum(resize(image, recorded.height, recorded.width, Filter::kBilinear)) ==
          recorded.bilinear);
    CHECK(checksum(resize(image, recorded.height, recorded.width, Filter::kBicubic)) ==
          recorded.bicubic);
  }
}

TEST_CASE("the same size is the same image, one colour stays one colour") {
  const Image image = formula_image(6, 5);
  CHECK(resize(image, 6, 5, Filter::kBicubic) == image);
  Image flat(13, 7);
  std::fill(flat.pixels.begin(), flat.pixels.end(), uint8_t{201});
  for (const Filter filter : {Filter::kBilinear, Filter::kBicubic}) {
    for (const uint8_t byte : resize(flat, 29, 3, filter).pixels) REQUIRE(byte == 201);
  }
}

TEST_CASE("the shorter side decides") {
  CHECK(shorter_side_size(formula_image(10, 25), 4).width == 10);
  const Size tall = shorter_side_size(formula_image(50, 30), 8);
  CHECK(tall.width == 8);
  CHECK(tall.height == 13);  // 8 * 50 / 30 = 13.33, rounded down
}

TEST_CASE("impossible sizes are refused") {
  CHECK(error_of([] { resize(formula_image(2, 2), 0, 3, Filter::kBilinear); }) ==
        "resize: size must be positive, got 0 x 3");
  CHECK(error_of([] { resize(Image(), 2, 2, Filter::kBilinear); }) ==
        "resize: the image is empty (0 x 0)");
}

}  // namespace
}  // namespace weft::data
