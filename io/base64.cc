#include "io/base64.h"

#include <cstdint>

#include "core/error.h"

namespace weft::io {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) {
      group = group << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0);
    }
    for (size_t k = 0; k < 4; ++k) {
      text += i + k <= bytes.size() ? kDigits[group >> (18 - 6 * k) & 63] : '=';
    }
  }
  return text;
}

std::string from_base64(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t group = 0;
  int bits = 0;
  for (const char c : text.substr(0, text.find('='))) {
    const size_t digit = kDigits.find(c);
    WEFT_CHECK(digit != kDigits.npos, "base64: unexpected character {:#x}",
               static_cast<uint8_t>(c));
    group = group << 6 | static_cast<uint32_t>(digit);
    bits += 6;
    if (bits >= 8) bytes += static_cast<char>(group >> (bits -= 8) & 0xff);
  }
  WEFT_CHECK(base64(bytes) == text, "base64: {} characters that are no whole text", text.size());
  return bytes;
}

}  // namespace weft::io
