// Bytes as text of 64 characters (RFC 4648, section 4): images in JSON and in pages.
#pragma once

#include <string>
#include <string_view>

namespace weft::io {

std::string base64(std::string_view bytes);

/// The bytes again. Throws Error for anything that base64() does not return.
std::string from_base64(std::string_view text);

}  // namespace weft::io
