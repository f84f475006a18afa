// Sums of doubles without any rounding but the last: a fixed-point number wide enough for every
// double (Kulisch, "Computer Arithmetic and Validity", 2013, chapter 8).
//
// Products of two floats are exact doubles as long as they neither overflow nor underflow one, so
// that the exact dot product of narrow formats is a sum of such products.
#pragma once

#include <array>
#include <cstdint>

namespace weft::numerics {

class ExactSum {
 public:
  /// x must be finite.
  void add(double x);
  /// The sum, rounded to nearest even, once. Infinite beyond the largest double.
  double value() const;

 private:
  // 2^-1074 to 2^1024, and 2^60 such terms: 2,160 bits, in limbs of 32 whose carries are put off.
  static constexpr int kLimbs = 69;
  void propagate();

  std::array<int64_t, kLimbs> limbs_{};  // limb i counts multiples of 2^(32 i - 1074)
  int pending_ = 0;                      // additions since the last carry
};

}  // namespace weft::numerics
