// The two image formats; data/image.h chooses between them. Errors are weft::Error and begin with
// `name`; nothing prints, exits or leaks on bad input.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "data/image.h"

namespace weft::data::codec {

/// Throws Error where an image has more pixels than are read, 2^28 unless WEFT_MAX_PIXELS says
/// otherwise: a header of a few bytes must not claim all memory.
void check_pixels(int64_t width, int64_t height, const char* format, const std::string& name);

Image decode_jpeg(std::span<const uint8_t> bytes, const std::string& name);
Image decode_png(std::span<const uint8_t> bytes, const std::string& name);

}  // namespace weft::data::codec
