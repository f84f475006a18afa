// 8-bit RGB images, read from JPEG and PNG files.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft::data {

/// Rows of pixels, each red, green, blue: pixels[(y * width + x) * 3 + channel].
struct Image {
  int height = 0;
  int width = 0;
  std::vector<uint8_t> pixels;

  Image() = default;
  Image(int height, int width)
      : height(height), width(width), pixels(size_t{3} * height * width, uint8_t{0}) {}

  uint8_t* at(int y, int x) { return &pixels[(static_cast<size_t>(y) * width + x) * 3]; }
  const uint8_t* at(int y, int x) const {
    return &pixels[(static_cast<size_t>(y) * width + x) * 3];
  }
  bool operator==(const Image&) const = default;
};

/// Decodes a JPEG or PNG image, told apart by content. Grey, palette, CMYK and 16-bit images become
/// 8-bit RGB; alpha is dropped, not blended, as PIL's convert("RGB") does. Throws Error that begins
/// with `name` when the bytes are neither format, damaged or cut short, or hold more pixels than
/// WEFT_MAX_PIXELS (2^28).
Image decode_image(std::span<const uint8_t> bytes, const std::string& name);

/// Reads and decodes a file; errors name the path.
Image read_image(const std::string& path);

std::vector<uint8_t> encode_png(const Image& image);
/// quality in 1..100; chroma at full resolution.
std::vector<uint8_t> encode_jpeg(const Image& image, int quality = 95);

}  // namespace weft::data
