// The two image formats; data/image.h chooses between them. Errors are weft::Error and begin with
// `name`; nothing prints, exits or leaks on bad input.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "data/image.h"

namespace weft::data::codec {

/// The most pixels an image may have: a header of a few bytes must not claim all memory.
inline constexpr int64_t kMaxPixels = int64_t{1} << 28;

Image decode_jpeg(std::span<const uint8_t> bytes, const std::string& name);
Image decode_png(std::span<const uint8_t> bytes, const std::string& name);

}  // namespace weft::data::codec
