#include "data/sets/open_text.h"

#include "core/error.h"
#include "data/files.h"
#include "data/sets/grammar.h"
#include "io/nearest.h"

namespace weft::data {
namespace {

constexpr const char* kGrammar = "grammar";
constexpr std::string_view kPrefix = "text:", kSuffix = ".txt";

}  // namespace

bool is_text(const std::string& spec) {
  return spec == kGrammar || spec.starts_with(kPrefix) ||
         (spec.ends_with(kSuffix) && spec.find(':') == std::string::npos);
}

TextSplits open_text(const std::string& spec, int64_t length) {
  WEFT_CHECK(is_text(spec), "unknown text '{}': expected grammar, text:FILE or FILE.txt{}", spec,
             io::did_you_mean(spec, {kGrammar}));
  constexpr int64_t kGrammarBytes = 1'000'000;
  constexpr uint64_t kGrammarSeed = 1;
  constexpr double kTrained = 0.9, kValidated = 0.5;  // of all, and of the rest
  TextSplits splits;
  Bytes all;
  if (spec == kGrammar) {
    all = Grammar::tales().text(kGrammarBytes, kGrammarSeed);
    splits.entropy = Grammar::tales().entropy();
  } else {
    const std::string path = spec.starts_with(kPrefix) ? spec.substr(kPrefix.size()) : spec;
    WEFT_CHECK(!path.empty(), "data '{}': expected a file after the colon", spec);
    all = read_file(path);
  }
  const int64_t least = 20 * (2 * length + 2);
  WEFT_CHECK(static_cast<int64_t>(all.size()) >= least,
             "data '{}': {} bytes are too few; expected {} or more, so that a twentieth of them "
             "tests windows of {}",
             spec, all.size(), least, length);
  Bytes rest;
  std::tie(splits.train, rest) = split_text(all, kTrained);
  std::tie(splits.validation, splits.test) = split_text(rest, kValidated);
  return splits;
}

}  // namespace weft::data
