#include "data/image.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "data/codec.h"
#include "data/files.h"

namespace weft::data {
namespace {

bool starts_with(std::span<const uint8_t> bytes, std::initializer_list<uint8_t> magic) {
  return bytes.size() >= magic.size() && std::equal(magic.begin(), magic.end(), bytes.begin());
}

}  // namespace

Image decode_image(std::span<const uint8_t> bytes, const std::string& name) {
  WEFT_CHECK(!bytes.empty(), "{}: empty file, expected a JPEG or PNG image", name);
  if (starts_with(bytes, {0xFF, 0xD8, 0xFF})) return codec::decode_jpeg(bytes, name);
  if (starts_with(bytes, {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'})) {
    return codec::decode_png(bytes, name);
  }
  const auto first = bytes.first(std::min<size_t>(bytes.size(), 4));
  WEFT_FAIL("{}: not a JPEG or PNG image (it begins with {:02x})", name, fmt::join(first, " "));
}

Image read_image(const std::string& path) { return decode_image(read_file(path), path); }

}  // namespace weft::data
