#include "train/limit.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "io/quote.h"

namespace weft::train {

Limit Limit::parse(const std::string& text, const char* option) {
  const char *const begin = text.data(), *const end = begin + text.size();
  const auto reads = [&](auto& value) {
    const auto [rest, error] = std::from_chars(begin, end, value);
    return error == std::errc() && rest == end;
  };
  int64_t count = 0;
  if (reads(count)) return count;
  double fraction = 0;
  WEFT_CHECK(reads(fraction), "{}: expected a count, 10, or a fraction, 0.1, got {}", option,
             io::quote(text));
  return fraction;
}

void Limit::check(const char* option) const {
  constexpr const char* kExpected = "{}: expected a positive count or a fraction in (0, 1], got {}";
  if (count) WEFT_CHECK(*count > 0, kExpected, option, *count);
  WEFT_CHECK(fraction > 0 && fraction <= 1, kExpected, option, fraction);
}

int64_t Limit::of(int64_t all, const char* option) const {
  check(option);
  if (count) return std::min(*count, all);
  const auto part = static_cast<int64_t>(fraction * static_cast<double>(all));
  WEFT_CHECK(part > 0, "{}: {} of {} batches is none", option, fraction, all);
  return part;
}

}  // namespace weft::train
