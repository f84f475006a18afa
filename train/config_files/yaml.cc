#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>
#include <string>
#include <vector>

#include "core/error.h"
#include "io/quote.h"
#include "train/config_files/dialects.h"

namespace weft::train {
namespace {

/// yaml-cpp takes some 240 bytes for a byte of text, before there is a node to count.
constexpr size_t kMostBytes = size_t{1} << 20;
/// Aliases make a small text large.
constexpr int kMostNodes = 10'000, kDeepest = 32;

/// A plain scalar's value; quoted ones are texts.
nlohmann::json scalar(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return text;
  for (const char* null : {"", "~", "null", "Null", "NULL"}) {
    if (text == null) return nullptr;
  }
  for (const char* yes : {"true", "True", "TRUE"}) {
    if (text == yes) return true;
  }
  for (const char* no : {"false", "False", "FALSE"}) {
    if (text == no) return false;
  }
  const char *begin = text.data(), *const end = begin + text.size();
  if (text[0] == '+') ++begin;
  const auto reads = [&](auto& value) {
    const auto [rest, error] = std::from_chars(begin, end, value);
    return error == std::errc() && rest == end;
  };
  int64_t whole = 0;
  uint64_t large = 0;  // a seed
  double number = 0;
  if (reads(whole)) return whole;
  if (reads(large)) return large;
  if (reads(number) && std::isfinite(number)) return number;
  return text;
}

class Converter {
 public:
  explicit Converter(const std::string& file) : file_(file) {}

  nlohmann::json convert(const YAML::Node& node, int depth = 0) {
    WEFT_CHECK(++nodes_ <= kMostNodes && depth <= kDeepest,
               "{}: line {}: expected at most {} values, {} deep", file_, node.Mark().line + 1,
               kMostNodes, kDeepest);
    switch (node.Type()) {
      case YAML::NodeType::Scalar:
        return scalar(node);
      case YAML::NodeType::Sequence: {
        nlohmann::json list = nlohmann::json::array();
        for (const YAML::Node& item : node) list.push_back(convert(item, depth + 1));
        return list;
      }
      case YAML::NodeType::Map: {
        nlohmann::json object = nlohmann::json::object();
        for (const auto& entry : node) {
          const int line = entry.first.Mark().line + 1;
          WEFT_CHECK(entry.first.IsScalar(), "{}: line {}: expected a key before \":\"", file_,
                     line);
          const std::string& key = entry.first.Scalar();
          WEFT_CHECK(!object.contains(key), "{}: line {}: the key {} is there twice", file_, line,
                     io::quote(key));
          object[key] = convert(entry.second, depth + 1);
        }
        return object;
      }
      default:
        return nullptr;
    }
  }

 private:
  const std::string& file_;
  int nodes_ = 0;
};

}  // namespace

nlohmann::json parse_yaml(const std::string& file, std::string_view text) {
  WEFT_CHECK(text.size() <= kMostBytes, "{}: {} bytes of YAML, at most {} are read", file,
             text.size(), kMostBytes);
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(std::string(text));
    for (size_t i = 1; i < documents.size(); ++i) {
      WEFT_CHECK(documents[i].IsNull(), "{}: line {}: expected one YAML document, got another",
                 file, documents[i].Mark().line + 1);
    }
    return documents.empty() ? nullptr : Converter(file).convert(documents[0]);
  } catch (const YAML::Exception& error) {
    WEFT_FAIL("{}: line {}: expected YAML: {}", file, error.mark.line + 1, error.msg);
  }
}

}  // namespace weft::train
