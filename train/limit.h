// How many of something there are to be: a count, or a fraction of all.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>

namespace weft::train {

/// A count by an integer, a fraction by a floating number: 10 of them, or 0.1 of all.
struct Limit {
  Limit() = default;  // all
  template <std::integral T>
  Limit(T count) : count(static_cast<int64_t>(count)) {}
  template <std::floating_point T>
  Limit(T fraction) : fraction(static_cast<double>(fraction)) {}
  /// Of a text: "10" is a count, "0.1" and "1.0" are fractions. Throws Error naming the option for
  /// one that is no number.
  static Limit parse(const std::string& text, const char* option);

  bool is_zero() const { return count ? *count == 0 : fraction == 0; }
  /// Out of `all`, at most all. Throws Error naming the option when there are none, or when the
  /// limit is not a positive count or a fraction in (0, 1].
  int64_t of(int64_t all, const char* option) const;
  /// Throws Error naming the option unless it is such a count or fraction.
  void check(const char* option) const;

  std::optional<int64_t> count;
  double fraction = 1;
};

}  // namespace weft::train
