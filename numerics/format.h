// Number formats as objects: any binary floating-point format by its exponent and mantissa bits,
// and fixed point.
//
// A code of 1 + E + M bits is a sign, an exponent field and a mantissa field, as in IEEE 754. With
// bias 2^(E-1) - 1 a field e > 0 and mantissa m stand for (1 + m 2^-M) 2^(e - bias), and e = 0 for
// the subnormal m 2^(1 - bias - M). The top exponent field holds infinity and NaNs
// (Specials::kIeee) or, as in OCP's e4m3, numbers but for its last code, which is NaN
// (Specials::kNanOnly).
//
// core/float_formats.h has the formats that tensors are stored in, rounded as storage rounds; here
// every rounding is to be had, for study. Both agree where they meet, bit for bit (format_test).
//
// NaN: keeps its sign; formats of at least 16 bits with infinities keep the leading payload bits
// and become quiet, others have one NaN per sign, all ones. Overflow: see Conversion.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/float_formats.h"

namespace weft::numerics {

enum class Rounding : uint8_t {
  kNearestEven,  // ties to the even code
  kTowardZero,
  kNearestAway,  // ties away from zero
  kStochastic,   // away from zero with the probability of the lost fraction
};

enum class Specials : uint8_t { kIeee, kNanOnly };

/// How a value becomes a code.
struct Conversion {
  Rounding rounding = Rounding::kNearestEven;
  /// A result that would be subnormal becomes zero of the same sign.
  bool flush_subnormals = false;
  /// Beyond the largest number: infinity (NaN where there is none), or the largest number, which
  /// infinities then become, too. Rounding toward zero gives the largest number for finite values.
  Overflow overflow = Overflow::kSpecial;
};

class FloatFormat {
 public:
  /// 2 to 11 exponent and 1 to 52 mantissa bits; others throw Error.
  FloatFormat(int exponent_bits, int mantissa_bits, Specials specials = Specials::kIeee,
              std::string name = "");

  /// "e5m10", or the name it was given.
  const std::string& name() const { return name_; }
  int exponent_bits() const { return exponent_bits_; }
  int mantissa_bits() const { return mantissa_bits_; }
  Specials specials() const { return specials_; }
  int bits() const { return 1 + exponent_bits_ + mantissa_bits_; }
  int min_exponent() const { return min_exponent_; }
  int max_exponent() const;

  double largest() const { return decode(max_finite_); }
  double smallest_normal() const { return decode(uint64_t{1} << mantissa_bits_); }
  double smallest_subnormal() const { return decode(1); }
  /// The distance from 1 to the next number, 2^-M.
  double epsilon() const;
  /// Half of that: the largest relative error of rounding to nearest.
  double unit_roundoff() const { return epsilon() / 2; }

  /// The code of x. `random`: 64 random bits, read by stochastic rounding alone, which rounds away
  /// from zero when they, as a fraction, lie below the lost fraction of the last place.
  uint64_t encode(double x, const Conversion& conversion = {}, uint64_t random = 0) const {
    return encode_fields(x, conversion, random);
  }
  uint64_t encode(float x, const Conversion& conversion = {}, uint64_t random = 0) const {
    // Formats with f32's exponents or fewer see f32's subnormals as they are stored.
    return exponent_bits_ > 8 ? encode(static_cast<double>(x), conversion, random)
                              : encode_fields(x, conversion, random);
  }
  /// The exact value of a code. A NaN's payload is kept in the leading bits.
  double decode(uint64_t code) const;
  /// decode(encode(x)).
  double round(double x, const Conversion& conversion = {}, uint64_t random = 0) const {
    return decode(encode(x, conversion, random));
  }

 private:
  template <class T>
  uint64_t encode_fields(T x, const Conversion& conversion, uint64_t random) const;
  /// significand 2^exponent, without its sign; its leading bit stands for 2^leading, or it is less
  /// and 2^leading no more than the smallest normal number.
  uint64_t encode_magnitude(uint64_t significand, int exponent, int leading,
                            const Conversion& conversion, uint64_t random) const;
  uint64_t encode_special(uint64_t payload, int payload_bits, const Conversion& conversion) const;

  int exponent_bits_, mantissa_bits_;
  Specials specials_;
  int min_exponent_;
  uint64_t max_finite_, overflow_code_;
  std::string name_;
};

/// fp32 tf32 fp16 bf16 e4m3 e5m2.
const std::vector<FloatFormat>& named_formats();

/// A named format; or e<E>m<M>, with "fn" behind it for Specials::kNanOnly: "e3m4", "e3m4fn".
/// Throws Error for anything else.
FloatFormat parse_format(std::string_view name);

/// Signed fixed point: `integer_bits` and `fraction_bits` beside the sign, two's complement. A code
/// k stands for k 2^-fraction_bits.
class FixedFormat {
 public:
  /// 1 to 53 bits without the sign; others throw Error.
  FixedFormat(int integer_bits, int fraction_bits);

  /// "q3.4".
  std::string name() const;
  int bits() const { return 1 + integer_bits_ + fraction_bits_; }
  double largest() const;
  double smallest() const;  // the most negative
  double step() const;

  /// Saturates; NaN gives 0. `random` as for FloatFormat.
  int64_t encode(double x, Rounding rounding = Rounding::kNearestEven, uint64_t random = 0) const;
  double decode(int64_t code) const { return static_cast<double>(code) * step(); }

 private:
  int integer_bits_, fraction_bits_;
};

// ---------------------------------------------------------------------------------------------

/// `significand` cut by `shift` > 0 bits and rounded.
inline uint64_t round_bits(uint64_t significand, int shift, Rounding rounding, uint64_t random) {
  // A shift of 63 leaves nothing of the significands here, which have at most 54 bits.
  const uint64_t kept = shift < 64 ? significand >> shift : 0;
  const uint64_t rest = shift < 64 ? significand - (kept << shift) : significand;
  switch (rounding) {
    case Rounding::kTowardZero:
      return kept;
    case Rounding::kStochastic: {
      const uint64_t threshold = shift <= 64       ? rest << (64 - shift)
                                 : shift - 64 < 64 ? rest >> (shift - 64)
                                                   : 0;
      return kept + (random < threshold);
    }
    default: {
      if (shift >= 64) return 0;
      const uint64_t half = uint64_t{1} << (shift - 1);
      const bool up_at_tie = rounding == Rounding::kNearestAway || (kept & 1);
      return kept + (rest > half || (rest == half && up_at_tie));
    }
  }
}

inline uint64_t FloatFormat::encode_magnitude(uint64_t significand, int exponent, int leading,
                                              const Conversion& conversion, uint64_t random) const {
  leading = std::max(leading, min_exponent_);
  const int shift = leading - mantissa_bits_ - exponent;
  uint64_t code = shift <= 0 ? significand << -shift
                             : round_bits(significand, shift, conversion.rounding, random);
  // A carry out of the mantissa ripples into the exponent field, where it belongs.
  code += static_cast<uint64_t>(leading - min_exponent_) << mantissa_bits_;
  if (code > max_finite_) {
    const bool stays_finite =
        conversion.rounding == Rounding::kTowardZero || conversion.overflow == Overflow::kSaturate;
    return stays_finite ? max_finite_ : overflow_code_;
  }
  if (conversion.flush_subnormals && code < uint64_t{1} << mantissa_bits_) return 0;
  return code;
}

template <class T>
uint64_t FloatFormat::encode_fields(T x, const Conversion& conversion, uint64_t random) const {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  constexpr int kMantissaBits = std::numeric_limits<T>::digits - 1;
  constexpr int kBias = std::numeric_limits<T>::max_exponent - 1, kTop = 2 * kBias + 1;
  const uint64_t bits = std::bit_cast<Bits>(x);
  const uint64_t sign = bits >> (8 * sizeof(T) - 1) << (exponent_bits_ + mantissa_bits_);
  const uint64_t mantissa = bits & ((uint64_t{1} << kMantissaBits) - 1);
  const int field = static_cast<int>(bits >> kMantissaBits & kTop);
  if (field == kTop) return sign | encode_special(mantissa, kMantissaBits, conversion);
  const uint64_t significand = field == 0 ? mantissa : mantissa | uint64_t{1} << kMantissaBits;
  const int leading = std::max(field, 1) - kBias;
  return sign | encode_magnitude(significand, leading - kMantissaBits, leading, conversion, random);
}

}  // namespace weft::numerics
