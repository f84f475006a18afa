// Sums without rounding (Kulisch's long accumulator), and the one rounding at their end.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/dtype.h"

namespace weft::kernels {

/// The double that rounds to any narrower format as the exact s + t does: s, which is the nearest
/// to s + t, or its neighbour on t's side, whichever is odd (Boldo and Melquiond, "Emulation of FMA
/// and correctly rounded sums", IEEE Transactions on Computers 57, 2008).
inline double round_to_odd(double s, double t) {
  const uint64_t bits = std::bit_cast<uint64_t>(s);
  if (t == 0 || (bits & 1)) return s;
  return std::bit_cast<double>((t > 0) == (s > 0) ? bits + 1 : bits - 1);
}

/// s + t = a + b exactly, s being the nearest double (Knuth's two-sum).
struct TwoSum {
  double s, t;
  TwoSum(double a, double b) : s(a + b) {
    const double b_part = s - a;
    t = (a - (s - b_part)) + (b - b_part);
  }
};

/// The value of a dtype nearest to x, ties to even.
inline double round_once(double x, DType dtype) {
  switch (dtype) {
    case DType::f32:
      return static_cast<double>(static_cast<float>(x));
    case DType::f16:
      return to_double(from_double<f16>(x));
    case DType::bf16:
      return to_double(from_double<bf16>(x));
    default:
      return x;
  }
}

/// The exact sum of up to 2^30 finite doubles of magnitudes between 2^-300, their last bit, and
/// 2^256: products of two floats, and floats.
class ExactSum {
 public:
  void add(double x) {
    if (x == 0) return;
    int exponent;
    const double significand = std::frexp(x, &exponent);
    const auto integer = static_cast<int64_t>(std::ldexp(significand, 53));
    const int position = exponent - 53 - kLowest;  // of the integer's last bit
    const int digit = position / kDigitBits, shift = position % kDigitBits;
    auto rest = static_cast<__int128>(integer) * (int64_t{1} << shift);
    // Three digits of 32 bits hold 53 + 31; the last keeps the sign.
    for (int i = 0; i < 2; ++i) {
      digits_[digit + i] += static_cast<int64_t>(static_cast<uint32_t>(rest));
      rest >>= kDigitBits;
    }
    digits_[digit + 2] += static_cast<int64_t>(rest);
  }

  /// The sum rounded once to f32, f16 or bf16.
  double rounded(DType dtype) const {
    uint32_t digits[kDigits];
    int64_t carry = 0;
    bool negative = false;
    normalise(1, digits, carry);
    if (carry < 0) {
      negative = true;
      carry = 0;
      normalise(-1, digits, carry);
    }
    int top = kDigits - 1;
    while (top >= 0 && digits[top] == 0) --top;
    if (top < 0) return 0;
    // 64 bits from the leading one on, the last of them standing for all that follow.
    unsigned __int128 head = 0;
    for (int i = 0; i < 3; ++i) head = head << 32 | (top - i >= 0 ? digits[top - i] : 0);
    const int zeros = std::countl_zero(digits[top]);
    head <<= 32 + zeros;
    auto leading = static_cast<uint64_t>(head >> 64);
    bool rest = static_cast<uint64_t>(head) != 0;
    for (int i = top - 3; i >= 0; --i) rest |= digits[i] != 0;
    // To a double, rounded to odd: 53 bits, the last one sticky.
    rest |= (leading & 0x7ff) != 0;
    leading = leading >> 11 | (rest ? 1 : 0);
    const int exponent = kLowest + kDigitBits * (top + 1) - zeros - 53;
    const double value = std::ldexp(static_cast<double>(leading), exponent);
    return round_once(negative ? -value : value, dtype);
  }

 private:
  static constexpr int kDigitBits = 32;
  static constexpr int kLowest = -384;  // exponent of the lowest digit's last bit
  static constexpr int kDigits = 24;    // up to 2^384

  /// The digits of sign * sum in [0, 2^32); what is left over the top is the carry.
  void normalise(int sign, uint32_t (&digits)[kDigits], int64_t& carry) const {
    for (int i = 0; i < kDigits; ++i) {
      const int64_t digit = sign * digits_[i] + carry;
      digits[i] = static_cast<uint32_t>(digit);
      carry = digit >> kDigitBits;
    }
  }

  int64_t digits_[kDigits] = {};
};

}  // namespace weft::kernels
