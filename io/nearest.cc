#include "io/nearest.h"

#include <algorithm>
#include <cctype>
#include <cstddef>

namespace weft::io {
namespace {

constexpr size_t kShortestBeginning = 3;  // of a name, that stands for it

/// In small letters with -, without an option's leading ones.
std::string folded(std::string_view word) {
  std::string result(word.substr(std::min(word.find_first_not_of('-'), word.size())));
  for (char& c : result) {
    c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return result;
}

/// Rows of the table of distances between beginnings: the last three are enough.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before, row(b.size() + 1), next(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      next[j] = std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        next[j] = std::min(next[j], before[j - 2] + 1);
      }
    }
    before = row;
    std::swap(row, next);
  }
  return row[b.size()];
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string wanted = folded(word);
  size_t fewest = std::max<size_t>(1, wanted.size() / 3) + 1;
  std::string best;
  const std::string* longer = nullptr;  // the shortest that begins with the word
  for (const std::string& candidate : candidates) {
    const std::string known = folded(candidate);
    if (wanted.size() >= kShortestBeginning && known.starts_with(wanted) &&
        (!longer || candidate.size() < longer->size())) {
      longer = &candidate;
    }
    // So many letters have to go or to come at least.
    const size_t least =
        std::max(wanted.size(), known.size()) - std::min(wanted.size(), known.size());
    const size_t edits = least < fewest ? distance(wanted, known) : least;
    if (edits >= fewest) continue;
    fewest = edits;
    best = candidate;
  }
  return longer ? *longer : best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string guess = nearest(word, candidates);
  return guess.empty() ? "" : "; did you mean \"" + guess + "\"?";
}

}  // namespace weft::io
