#include "data/image.h"

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csetjmp>
#include <cstdio>
// libjpeg needs size_t and FILE declared first.
#include <jpeglib.h>

#include "core/available_memory.h"
#include "core/philox.h"
#include "data/fixtures.h"

namespace weft::data {
namespace {

using Bytes = std::vector<uint8_t>;

struct PngCase {
  const char* name;
  Bytes bytes;                  // written by PIL
  std::vector<uint8_t> pixels;  // PIL's convert("RGB"); of grey16 the upper bytes
};

const PngCase kPngs[] = {
    {"grey",
     {0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48, 0x44,
      0x52, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x02, 0x08, 0x00, 0x00, 0x00, 0x00, 0xb8,
      0x1f, 0x39, 0xc6, 0x00, 0x00, 0x00, 0x10, 0x49, 0x44, 0x41, 0x54, 0x78, 0x9c, 0x63, 0x60,
      0x48, 0xf9, 0xcf, 0xc8, 0xce, 0xc8, 0x08, 0x00, 0x07, 0x77, 0x01, 0x6e, 0x5a, 0xa4, 0xe1,
      0xe5, 0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82},
     {0, 0, 0, 100, 100, 100, 255, 255, 255, 7, 7, 7, 8, 8, 8, 9, 9, 9}},
    {"palette",
     {0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48,
      0x44, 0x52, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x02, 0x02, 0x03, 0x00, 0x00,
      0x00, 0xe0, 0x1a, 0x8e, 0x89, 0x00, 0x00, 0x00, 0x0c, 0x50, 0x4c, 0x54, 0x45, 0x5b,
      0xb3, 0x8c, 0x3b, 0x8e, 0xe1, 0x25, 0x78, 0xcb, 0x4e, 0x2c, 0x8a, 0x7c, 0x85, 0xab,
      0x0b, 0x00, 0x00, 0x00, 0x0c, 0x49, 0x44, 0x41, 0x54, 0x78, 0x9c, 0x63, 0x58, 0xc2,
      0xe0, 0x03, 0x00, 0x02, 0x3c, 0x00, 0xf1, 0xb8, 0xd8, 0xac, 0x8d, 0x00, 0x00, 0x00,
      0x00, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82},
     {37, 120, 203, 37, 120, 203, 59, 142, 225, 59, 142, 225, 91, 179, 140, 78, 44, 138}},
    {"rgba",
     {0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49,
      0x48, 0x44, 0x52, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x02, 0x08, 0x06,
      0x00, 0x00, 0x00, 0x9d, 0x74, 0x66, 0x1a, 0x00, 0x00, 0x00, 0x22, 0x49, 0x44,
      0x41, 0x54, 0x78, 0x9c, 0x63, 0x64, 0x08, 0x5e, 0xc6, 0xa0, 0xaa, 0xaa, 0xda,
      0xa0, 0xaa, 0xaa, 0x5a, 0xcf, 0x68, 0xdd, 0xf7, 0x90, 0xd1, 0xc0, 0xda, 0x8d,
      0xd1, 0xc0, 0xda, 0x8d, 0x11, 0x00, 0x4e, 0xf6, 0x05, 0xe8, 0x85, 0x2d, 0xd1,
      0x51, 0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82},
     {0, 83, 166, 37, 120, 203, 74, 157, 240, 59, 142, 225, 107, 201, 39, 155, 4, 109}},
    {"grey16",
     {0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48,
      0x44, 0x52, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x02, 0x10, 0x00, 0x00, 0x00,
      0x00, 0xe8, 0x8f, 0xe5, 0x85, 0x00, 0x00, 0x00, 0x16, 0x49, 0x44, 0x41, 0x54, 0x78,
      0x9c, 0x63, 0x60, 0x60, 0x10, 0x32, 0xf9, 0xff, 0x9f, 0xa5, 0xe1, 0xff, 0x7f, 0x46,
      0x46, 0x26, 0x00, 0x1f, 0xe5, 0x04, 0xcb, 0x67, 0x6f, 0x6a, 0xd6, 0x00, 0x00, 0x00,
      0x00, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82},
     {0, 0, 0, 18, 18, 18, 255, 255, 255, 128, 128, 128, 127, 127, 127, 0, 0, 0}},
    {"grey_alpha",
     {0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48,
      0x44, 0x52, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x02, 0x08, 0x04, 0x00, 0x00,
      0x00, 0x37, 0x7d, 0xae, 0x91, 0x00, 0x00, 0x00, 0x16, 0x49, 0x44, 0x41, 0x54, 0x78,
      0x9c, 0x63, 0x74, 0x61, 0x50, 0x6d, 0x50, 0xad, 0x67, 0xac, 0x67, 0x94, 0x66, 0x5c,
      0xcc, 0x08, 0x00, 0x14, 0x28, 0x02, 0xd0, 0x1a, 0x41, 0xa2, 0x70, 0x00, 0x00, 0x00,
      0x00, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82},
     {68, 68, 68, 105, 105, 105, 142, 142, 142, 127, 127, 127, 154, 154, 154, 61, 61, 61}},
    {"bits",
     {0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48,
      0x44, 0x52, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x02, 0x01, 0x00, 0x00, 0x00,
      0x00, 0xb5, 0x0f, 0x5b, 0xb7, 0x00, 0x00, 0x00, 0x0c, 0x49, 0x44, 0x41, 0x54, 0x78,
      0x9c, 0x63, 0x48, 0x60, 0x60, 0x00, 0x00, 0x01, 0x24, 0x00, 0x61, 0x02, 0x7d, 0x58,
      0x33, 0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82},
     {0, 0, 0, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
};

// One colour everywhere, in any of libjpeg's colour spaces.
Bytes flat_jpeg(J_COLOR_SPACE space, const Bytes& color, bool is_progressive = false) {
  jpeg_compress_struct info = {};
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  uint8_t* buffer = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &buffer, &size);
  info.image_width = info.image_height = 8;
  info.input_components = static_cast<int>(color.size());
  info.in_color_space = space;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 100, TRUE);
  if (is_progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  Bytes row;
  for (int x = 0; x < 8; ++x) row.insert(row.end(), color.begin(), color.end());
  JSAMPROW rows[1] = {row.data()};
  while (info.next_scanline < 8) jpeg_write_scanlines(&info, rows, 1);
  jpeg_finish_compress(&info);
  Bytes bytes(buffer, buffer + size);
  jpeg_destroy_compress(&info);
  std::free(buffer);
  return bytes;
}

TEST_CASE("PNG of every kind decodes to PIL's RGB pixels") {
  for (const PngCase& png : kPngs) {
    CAPTURE(png.name);
    const Image image = decode_image(png.bytes, "x.png");
    CHECK(image.height == 2);
    CHECK(image.width == 3);
    CHECK(image.pixels == png.pixels);
  }
}

TEST_CASE("PNG keeps every bit, JPEG nearly") {
  const Image image = formula_image(31, 17);
  CHECK(decode_image(encode_png(image), "x.png") == image);
  Image smooth(24, 40);
  for (int y = 0; y < 24; ++y) {
    for (int x = 0; x < 40; ++x) {
      smooth.at(y, x)[0] = static_cast<uint8_t>(5 * x);
      smooth.at(y, x)[1] = static_cast<uint8_t>(9 * y);
      smooth.at(y, x)[2] = 77;
    }
  }
  const Image decoded = decode_image(encode_jpeg(smooth, 100), "x.jpg");
  REQUIRE(decoded.pixels.size() == smooth.pixels.size());
  int largest = 0;
  for (size_t i = 0; i < smooth.pixels.size(); ++i) {
    largest = std::max(largest, std::abs(smooth.pixels[i] - decoded.pixels[i]));
  }
  // Quality 100 quantises by 1: DCT, colour conversion and its inverse round a few units away.
  CHECK(largest <= 4);
}

TEST_CASE("grey and CMYK JPEG become RGB") {
  CHECK(decode_image(flat_jpeg(JCS_GRAYSCALE, {90}), "g.jpg").pixels ==
        Bytes(8 * 8 * 3, uint8_t{90}));
  // libjpeg marks CMYK files as Adobe's, where 255 is no ink: red = cyan * black / 255.
  const Image cmyk = decode_image(flat_jpeg(JCS_CMYK, {255, 102, 0, 204}), "c.jpg");
  CHECK(std::abs(cmyk.at(3, 3)[0] - 204) <= 1);
  CHECK(std::abs(cmyk.at(3, 3)[1] - 82) <= 1);
  CHECK(std::abs(cmyk.at(3, 3)[2] - 0) <= 1);
}

TEST_CASE("what is no image is named") {
  const Bytes text = {'h', 'e', 'l', 'l', 'o'};
  CHECK(error_of([&] { decode_image(text, "cat.jpg"); }) ==
        "cat.jpg: not a JPEG or PNG image (it begins with 68 65 6c 6c)");
  CHECK(error_of([&] { decode_image({}, "cat.jpg"); }) ==
        "cat.jpg: empty file, expected a JPEG or PNG image");
  CHECK(error_of([&] { read_image("/nowhere/cat.jpg"); }) ==
        "/nowhere/cat.jpg: cannot open: No such file or directory");
  CHECK(error_of([&] { read_image("/"); }) == "/: not a regular file");
}

TEST_CASE("a JPEG whose scans never end is refused") {
  const Bytes whole = flat_jpeg(JCS_RGB, {10, 200, 30}, true);
  CHECK(decode_image(whole, "x.jpg").width == 8);
  // The last scan, from its marker to the end of the image, again and again.
  const Bytes marker = {0xFF, 0xDA};
  const auto scan = std::find_end(whole.begin(), whole.end(), marker.begin(), marker.end());
  Bytes endless(whole.begin(), whole.end() - 2);
  for (int i = 0; i < 200; ++i) endless.insert(endless.end(), scan, whole.end() - 2);
  endless.insert(endless.end(), {0xFF, 0xD9});
  CHECK(error_of([&] { decode_image(endless, "x.jpg"); }) ==
        "x.jpg: damaged JPEG: more than 100 scans");
}

TEST_CASE("an image cut short anywhere is an error") {
  for (const Bytes& whole : {encode_png(formula_image(9, 9)), encode_jpeg(formula_image(9, 9))}) {
    // The last two bytes of a JPEG, and the 16 of a PNG's checksum and end, hold no pixels.
    for (size_t size = 1; size < whole.size() - 16; ++size) {
      const std::string message =
          error_of([&] { decode_image(std::span(whole).first(size), "part.img"); });
      CAPTURE(size);
      REQUIRE(message.starts_with("part.img: "));
    }
  }
  const Bytes jpeg = encode_jpeg(formula_image(9, 9));
  CHECK(error_of([&] { decode_image(std::span(jpeg).first(jpeg.size() - 20), "a.jpg"); }) ==
        "a.jpg: damaged JPEG: Premature end of JPEG file");
  Bytes closed(jpeg.begin(), jpeg.end() - 20);
  closed.insert(closed.end(), {0xFF, 0xD9});  // the end marker, too soon
  CHECK(error_of([&] { decode_image(closed, "a.jpg"); }) ==
        "a.jpg: damaged JPEG: Corrupt JPEG data: premature end of data segment");
  const Bytes png = encode_png(formula_image(9, 9));
  CHECK(error_of([&] { decode_image(std::span(png).first(png.size() - 20), "a.png"); }) ==
        "a.png: damaged PNG: the file ends early");
}

TEST_CASE("damaged bytes never do worse than an error") {
  Philox random(1);
  int errors = 0;
  for (const Bytes& whole :
       {encode_png(formula_image(20, 20)), encode_jpeg(formula_image(20, 20)), kPngs[1].bytes}) {
    for (int trial = 0; trial < 1000; ++trial) {
      Bytes bytes = whole;
      for (int k = 0; k < 3; ++k) {
        // Behind the magic bytes, which would only say that it is no image.
        bytes[8 + random.below(bytes.size() - 8)] = static_cast<uint8_t>(random.next_u32());
      }
      errors += !error_of([&] { decode_image(bytes, "x"); }).empty();
    }
  }
  CHECK(errors > 1000);
}

TEST_CASE("what says nothing of pixels takes no memory") {
  const Bytes png = encode_png(formula_image(8, 8));
  // Texts of 8 MB in 8 kB each, before the pixels.
  Bytes text = {'k', 0, 0};
  const Bytes plain(8000000, 'A');
  uLongf packed = compressBound(plain.size());
  text.resize(3 + packed);
  REQUIRE(compress2(&text[3], &packed, plain.data(), plain.size(), 9) == Z_OK);
  text.resize(3 + packed);
  Bytes chunk = {'z', 'T', 'X', 't'};
  chunk.insert(chunk.end(), text.begin(), text.end());
  const auto append = [](Bytes& to, uint32_t number) {
    for (int shift = 24; shift >= 0; shift -= 8)
      to.push_back(static_cast<uint8_t>(number >> shift));
  };
  constexpr size_t kHeader = 8 + 25;  // the signature and IHDR
  Bytes swollen(png.begin(), png.begin() + kHeader);
  for (int i = 0; i < 200; ++i) {
    append(swollen, static_cast<uint32_t>(text.size()));
    swollen.insert(swollen.end(), chunk.begin(), chunk.end());
    append(swollen, static_cast<uint32_t>(crc32(0, chunk.data(), static_cast<uInt>(chunk.size()))));
  }
  swollen.insert(swollen.end(), png.begin() + kHeader, png.end());
  const auto peak = [] { return weft::proc_bytes("/proc/self/status", "VmHWM"); };
  const int64_t before = peak();
  CHECK(decode_image(swollen, "swollen.png").pixels == formula_image(8, 8).pixels);
  CHECK(peak() - before < 64 << 20);
}

TEST_CASE("a pipe is no image, and nobody waits for it") {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/pipe.png";
  REQUIRE(::mkfifo(path.c_str(), 0666) == 0);
  CHECK(error_of([&] { read_image(path); }) == path + ": not a regular file");
}

TEST_CASE("a header cannot claim all memory") {
  Bytes jpeg = encode_jpeg(formula_image(8, 8));
  for (size_t i = 0; i + 9 < jpeg.size(); ++i) {
    if (jpeg[i] == 0xFF && jpeg[i + 1] == 0xC0) {  // start of frame: height, width
      jpeg[i + 5] = jpeg[i + 7] = 0xFF;
    }
  }
  CHECK(error_of([&] { decode_image(jpeg, "big.jpg"); }) ==
        "big.jpg: JPEG of 65288 x 65288 pixels, at most 268435456 are read (WEFT_MAX_PIXELS)");
}

}  // namespace
}  // namespace weft::data
