#include "io/quote.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace weft::io {
namespace {

std::string escape(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string quote(std::string_view text) {
  constexpr size_t kLongest = 120;
  std::string shown = escape(text.substr(0, kLongest));
  if (text.size() > kLongest) shown += "...";
  return shown;
}

bool is_utf8(std::string_view text) {
  const auto with = [&](nlohmann::json::error_handler_t handler) {
    return nlohmann::json(text).dump(-1, ' ', false, handler);
  };
  return with(nlohmann::json::error_handler_t::replace) ==
         with(nlohmann::json::error_handler_t::ignore);
}

std::string printable(const std::string& name) {
  const bool is_plain =
      std::ranges::all_of(name, [](unsigned char c) { return c >= 0x20 && c != 0x7f && c < 0x80; });
  return is_plain ? name : escape(name);
}

}  // namespace weft::io
