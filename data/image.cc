#include "data/image.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "core/error.h"
#include "data/codec.h"
#include "data/files.h"

namespace weft::data {
namespace {

bool starts_with(std::span<const uint8_t> bytes, std::initializer_list<uint8_t> magic) {
  return bytes.size() >= magic.size() && std::equal(magic.begin(), magic.end(), bytes.begin());
}

int64_t max_pixels() {
  const char* const text = std::getenv("WEFT_MAX_PIXELS");
  if (!text) return int64_t{1} << 28;
  const char* const end = text + std::strlen(text);
  int64_t pixels = 0;
  WEFT_CHECK(std::from_chars(text, end, pixels).ptr == end && pixels > 0,
             "WEFT_MAX_PIXELS: expected a number of pixels above 0, got \"{}\"", text);
  return pixels;
}

}  // namespace

void codec::check_pixels(int64_t width, int64_t height, const char* format,
                         const std::string& name) {
  WEFT_CHECK(height * width <= max_pixels(),
             "{}: {} of {} x {} pixels, at most {} are read (WEFT_MAX_PIXELS)", name, format, width,
             height, max_pixels());
}

Image decode_image(std::span<const uint8_t> bytes, const std::string& name) {
  WEFT_CHECK(!bytes.empty(), "{}: empty file, expected a JPEG or PNG image", name);
  if (starts_with(bytes, {0xFF, 0xD8, 0xFF})) return codec::decode_jpeg(bytes, name);
  if (starts_with(bytes, {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'})) {
    return codec::decode_png(bytes, name);
  }
  const auto first = bytes.first(std::min<size_t>(bytes.size(), 4));
  WEFT_FAIL("{}: not a JPEG or PNG image (it begins with {:02x})", name, fmt::join(first, " "));
}

Image read_image(const std::string& path) {
  // More than any image of so many pixels takes: 16 bits of four channels, and a header.
  constexpr int64_t kBytesPerPixel = 8, kHeader = 1 << 20;
  const int64_t pixels = std::min(max_pixels(), (INT64_MAX - kHeader) / kBytesPerPixel);
  return decode_image(read_file(path, pixels * kBytesPerPixel + kHeader), path);
}

}  // namespace weft::data
