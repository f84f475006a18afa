// Sums of doubles without any rounding but the last: the same bits for any order, any cut into
// parts, any number of ranks.
//
// A fixed-point number wide enough for every double (Kulisch, "Computer Arithmetic and Validity",
// 2013, chapter 8), in limbs of 32 bits held in 64 so that carries wait (Neal, "Fast exact
// summation using small and large superaccumulators", arXiv:1505.05571). Products of two floats,
// and squares of f32, f16 and bf16, are exact doubles as long as they neither overflow nor
// underflow one, so that exact dot products and norms are sums of such products.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace weft::numerics {

class ExactSum {
 public:
  /// The state as integers. Those of several sums, added up, are the state of their sum, which a
  /// collective can therefore form.
  static constexpr int kLimbs = 70;  // 2^-1074 to 2^1024, and 2^140 such terms
  static constexpr int kWords = kLimbs + 3;

  ExactSum() = default;
  explicit ExactSum(std::span<const int64_t, kWords> words);
  std::array<int64_t, kWords> words() const;

  void add(double x);
  void add(const ExactSum& other);

  /// The sum rounded once, to nearest even. Infinite beyond the largest double; NaN and infinities
  /// among the terms as IEEE addition has them.
  double value() const;
  /// The sum rounded to odd: any narrower format gets from it what it would get from the exact sum
  /// (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", IEEE Transactions on
  /// Computers 57, 2008).
  double value_to_odd() const;

 private:
  enum class Rounding : uint8_t { kNearestEven, kOdd };
  double rounded(Rounding rounding) const;
  void propagate_carries();

  std::array<int64_t, kLimbs> limbs_{};  // limb i counts multiples of 2^(32 i - 1074)
  std::array<int64_t, 3> specials_{};    // terms that are NaN, +infinity, -infinity
  int pending_ = 0;                      // additions since the carries were propagated
};

}  // namespace weft::numerics
