#include "io/checked_json.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "io/quote.h"

namespace weft::io {
namespace {

using json = nlohmann::json;

constexpr size_t kLargestForeign = size_t{32} << 20;
constexpr size_t kLargestByHand = size_t{8} << 20;
constexpr int kDeepest = 32;
constexpr const char* kKey = "crc32";
/// How texts begin, up to the checksum.
constexpr std::string_view kBegins[] = {"{\"crc32\":\"", "{\n  \"crc32\": \""};

/// Where the checksum stands; npos: nowhere.
size_t checksum_place(std::string_view text) {
  for (const std::string_view begin : kBegins) {
    if (text.starts_with(begin) && text.size() > begin.size() + kNoChecksum.size()) {
      return begin.size();
    }
  }
  return std::string_view::npos;
}

/// The library's text begins with "[json.exception...] "; the bytes it quotes may be anything.
std::string reason_of(const json::exception& error) {
  std::string reason = error.what();
  reason.erase(0, reason.find("] ") == std::string::npos ? 0 : reason.find("] ") + 2);
  std::ranges::replace_if(
      reason, [](unsigned char c) { return c < 32 || c > 126; }, '?');
  return reason.substr(0, 300);
}

/// Parsing takes no stack, but all that reads the result does. (The library's own callback looks
/// through all of an object's or array's elements after each one.)
template <class Json>
class BoundedParser : public nlohmann::detail::json_sax_dom_parser<Json> {
 public:
  /// With `refuses_twice` a key stands in an object once.
  BoundedParser(Json& result, const Path& file, bool refuses_twice)
      : Base(result), file_(file), refuses_twice_(refuses_twice) {}

  bool start_object(size_t size) {
    deepen();
    if (refuses_twice_) keys_.emplace_back();
    return Base::start_object(size);
  }
  bool end_object() {
    --depth_;
    if (refuses_twice_) keys_.pop_back();
    return Base::end_object();
  }
  bool start_array(size_t size) {
    deepen();
    return Base::start_array(size);
  }
  bool end_array() {
    --depth_;
    return Base::end_array();
  }
  bool key(std::string& text) {
    WEFT_CHECK(!refuses_twice_ || keys_.back().insert(text).second, "{}: the key {} is there twice",
               file_.string(), quote(text));
    return Base::key(text);
  }

 private:
  using Base = nlohmann::detail::json_sax_dom_parser<Json>;

  void deepen() {
    WEFT_CHECK(++depth_ <= kDeepest, "{}: JSON nested more than {} deep", file_.string(), kDeepest);
  }

  const Path& file_;
  const bool refuses_twice_;
  int depth_ = 0;
  std::vector<std::set<std::string>> keys_;  // of each object that is open
};

template <class Json>
Json parse_bounded(std::string_view text, const Path& file, size_t most, bool refuses_twice) {
  WEFT_CHECK(text.size() <= most, "{}: {} bytes of JSON, at most {} are read", file.string(),
             text.size(), most);
  Json result;
  BoundedParser<Json> parser(result, file, refuses_twice);
  Json::sax_parse(text, &parser);
  return result;
}

template <class Json>
Json parse_by_hand(std::string_view text, const Path& file) {
  try {
    return parse_bounded<Json>(text, file, kLargestByHand, true);
  } catch (const json::parse_error& error) {
    const std::string_view read = text.substr(0, std::min(error.byte, text.size()));
    WEFT_FAIL("{}: line {}: expected JSON", file.string(), std::ranges::count(read, '\n') + 1);
  } catch (const json::exception&) {
    WEFT_FAIL("{}: a number is too large: expected those of 64 bits", file.string());
  }
}

}  // namespace

std::string checked_json_text(json object, int indent) {
  object[kKey] = kNoChecksum;
  std::string text = object.dump(indent) + "\n";
  WEFT_CHECK(text.size() <= kLargestForeign, "{} bytes of JSON, at most {} would be read again",
             text.size(), kLargestForeign);
  const size_t at = checksum_place(text);
  WEFT_ASSERT(at != text.npos);
  const std::string checksum = checksum_of(text);
  return text.replace(at, checksum.size(), checksum);
}

bool looks_like_checked_json(std::string_view text) {
  return checksum_place(text) != std::string_view::npos;
}

json parse_checked_json(std::string_view text, const Path& file) {
  const size_t at = checksum_place(text);
  WEFT_CHECK(at != text.npos, "{} is damaged: it does not begin with its checksum", file.string());
  const std::string_view written = text.substr(at, kNoChecksum.size());
  const std::string found = checksum_around(std::as_bytes(std::span(text)), at);
  WEFT_CHECK(found == written, "{} is damaged: its CRC-32 is {}, {} was written", file.string(),
             found, written);
  return parse_foreign_json(text, file);
}

json parse_foreign_json(std::string_view text, const Path& file) {
  try {
    return parse_bounded<json>(text, file, kLargestForeign, false);
  } catch (const json::exception& error) {
    WEFT_FAIL("{} is damaged: {}", file.string(), reason_of(error));
  }
}

json parse_json(std::string_view text, const Path& file) { return parse_by_hand<json>(text, file); }

nlohmann::ordered_json parse_ordered_json(std::string_view text, const Path& file) {
  return parse_by_hand<nlohmann::ordered_json>(text, file);
}

}  // namespace weft::io
