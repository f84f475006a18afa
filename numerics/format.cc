#include "numerics/format.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace weft::numerics {

FloatFormat::FloatFormat(int exponent_bits, int mantissa_bits, Specials specials, std::string name)
    : exponent_bits_(exponent_bits), mantissa_bits_(mantissa_bits), specials_(specials) {
  const bool finite_only = specials == Specials::kNanOnly;
  name_ = !name.empty()
              ? std::move(name)
              : fmt::format("e{}m{}{}", exponent_bits, mantissa_bits, finite_only ? "fn" : "");
  WEFT_CHECK(exponent_bits >= 2 && exponent_bits <= 11,
             "format {}: expected 2 to 11 exponent bits, got {}", name_, exponent_bits);
  WEFT_CHECK(mantissa_bits >= 1 && mantissa_bits <= 52,
             "format {}: expected 1 to 52 mantissa bits, got {}", name_, mantissa_bits);
  const uint64_t top = ((uint64_t{1} << exponent_bits) - 1) << mantissa_bits;
  const uint64_t ones = top | ((uint64_t{1} << mantissa_bits) - 1);
  // With 11 exponent bits a double cannot hold the numbers of the top exponent.
  WEFT_CHECK(!finite_only || exponent_bits <= 10,
             "format {}: expected 2 to 10 exponent bits without infinities, got {}", name_,
             exponent_bits);
  min_exponent_ = 2 - (1 << (exponent_bits - 1));
  max_finite_ = finite_only ? ones - 1 : top - 1;
  overflow_code_ = finite_only ? ones : top;
}

int FloatFormat::max_exponent() const { return std::ilogb(largest()); }

double FloatFormat::epsilon() const { return std::ldexp(1.0, -mantissa_bits_); }

uint64_t FloatFormat::encode_special(uint64_t payload, int payload_bits,
                                     const Conversion& conversion) const {
  if (payload == 0) {
    return conversion.overflow == Overflow::kSaturate ? max_finite_ : overflow_code_;
  }
  const uint64_t ones = (uint64_t{1} << (exponent_bits_ + mantissa_bits_)) - 1;
  if (specials_ == Specials::kNanOnly || bits() < 16) return ones;
  const int shift = payload_bits - mantissa_bits_;
  const uint64_t kept = shift >= 0 ? payload >> shift : payload << -shift;
  return overflow_code_ | uint64_t{1} << (mantissa_bits_ - 1) | kept;
}

double FloatFormat::decode(uint64_t code) const {
  const int width = exponent_bits_ + mantissa_bits_;
  const bool negative = code >> width & 1;
  const uint64_t magnitude = code & ((uint64_t{1} << width) - 1);
  const uint64_t mantissa = magnitude & ((uint64_t{1} << mantissa_bits_) - 1);
  double value;
  if (magnitude > max_finite_) {
    const bool is_infinity = specials_ == Specials::kIeee && mantissa == 0;
    value = is_infinity
                ? std::numeric_limits<double>::infinity()
                : std::bit_cast<double>(0x7ff8000000000000u | mantissa << (52 - mantissa_bits_));
  } else {
    const int field = static_cast<int>(magnitude >> mantissa_bits_);
    const uint64_t significand = field == 0 ? mantissa : mantissa | uint64_t{1} << mantissa_bits_;
    value = std::ldexp(static_cast<double>(significand),
                       min_exponent_ + std::max(field - 1, 0) - mantissa_bits_);
  }
  return negative ? -value : value;
}

const std::vector<FloatFormat>& named_formats() {
  static const std::vector<FloatFormat> formats = {
      {8, 23, Specials::kIeee, "fp32"},   {8, 10, Specials::kIeee, "tf32"},
      {5, 10, Specials::kIeee, "fp16"},   {8, 7, Specials::kIeee, "bf16"},
      {4, 3, Specials::kNanOnly, "e4m3"}, {5, 2, Specials::kIeee, "e5m2"}};
  return formats;
}

FloatFormat parse_format(std::string_view name) {
  for (const FloatFormat& format : named_formats()) {
    if (format.name() == name) return format;
  }
  const auto number = [](std::string_view& text, char letter) {
    int value = -1;
    if (!text.starts_with(letter)) return value;
    const auto [end, error] = std::from_chars(text.data() + 1, text.data() + text.size(), value);
    if (error != std::errc()) return -1;
    text.remove_prefix(end - text.data());
    return value;
  };
  std::string_view rest = name;
  const int exponent_bits = number(rest, 'e'), mantissa_bits = number(rest, 'm');
  WEFT_CHECK(exponent_bits >= 0 && mantissa_bits >= 0 && (rest.empty() || rest == "fn"),
             "unknown format \"{}\": expected one of fp32 tf32 fp16 bf16 e4m3 e5m2, or "
             "e<exponent bits>m<mantissa bits> like e3m4, without infinities e3m4fn",
             name);
  return FloatFormat(exponent_bits, mantissa_bits,
                     rest == "fn" ? Specials::kNanOnly : Specials::kIeee);
}

FixedFormat::FixedFormat(int integer_bits, int fraction_bits)
    : integer_bits_(integer_bits), fraction_bits_(fraction_bits) {
  const int bits = integer_bits + fraction_bits;
  WEFT_CHECK(integer_bits >= 0 && fraction_bits >= 0 && bits >= 1 && bits <= 53,
             "fixed point q{}.{}: expected 1 to 53 bits beside the sign", integer_bits,
             fraction_bits);
}

std::string FixedFormat::name() const {
  return fmt::format("q{}.{}", integer_bits_, fraction_bits_);
}
double FixedFormat::step() const { return std::ldexp(1.0, -fraction_bits_); }
double FixedFormat::smallest() const { return -std::ldexp(1.0, integer_bits_); }
double FixedFormat::largest() const { return -smallest() - step(); }

int64_t FixedFormat::encode(double x, Rounding rounding, uint64_t random) const {
  if (std::isnan(x)) return 0;
  const int64_t limit = int64_t{1} << (integer_bits_ + fraction_bits_);
  const double scaled = std::ldexp(x, fraction_bits_);
  if (scaled >= static_cast<double>(limit)) return limit - 1;
  if (scaled <= -static_cast<double>(limit)) return -limit;
  int exponent = 0;
  const double significand = std::ldexp(std::frexp(std::abs(scaled), &exponent), 53);
  const uint64_t integer = static_cast<uint64_t>(significand);
  const int shift = 53 - exponent;
  const uint64_t magnitude =
      shift <= 0 ? integer << -shift : round_bits(integer, shift, rounding, random);
  const int64_t code = static_cast<int64_t>(magnitude);
  return std::clamp(x < 0 ? -code : code, -limit, limit - 1);
}

}  // namespace weft::numerics
