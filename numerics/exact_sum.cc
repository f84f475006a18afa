#include "numerics/exact_sum.h"

#include <bit>
#include <cmath>

namespace weft::numerics {
namespace {

// Each addition grows a limb by less than 2^32.
constexpr int kAdditionsBetweenCarries = 1 << 29;

}  // namespace

void ExactSum::add(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const int field = static_cast<int>(bits >> 52 & 0x7ff);
  uint64_t significand = bits & ((uint64_t{1} << 52) - 1);
  if (field != 0) significand |= uint64_t{1} << 52;
  const int position = field == 0 ? 0 : field - 1;  // of its last bit, above 2^-1074
  const int limb = position / 32, shift = position % 32;
  // 53 bits shifted by up to 31: three limbs.
  const unsigned __int128 wide = static_cast<unsigned __int128>(significand) << shift;
  const int64_t sign = bits >> 63 ? -1 : 1;
  for (int i = 0; i < 3; ++i) {
    limbs_[limb + i] += sign * static_cast<int64_t>(static_cast<uint32_t>(wide >> (32 * i)));
  }
  if (++pending_ == kAdditionsBetweenCarries) propagate();
}

void ExactSum::propagate() {
  for (int i = 0; i + 1 < kLimbs; ++i) {
    const int64_t carry = limbs_[i] >> 32;  // toward minus infinity: the limb becomes non-negative
    limbs_[i] -= carry * (int64_t{1} << 32);
    limbs_[i + 1] += carry;
  }
  pending_ = 0;
}

double ExactSum::value() const {
  ExactSum sum = *this;
  sum.propagate();
  const bool negative = sum.limbs_[kLimbs - 1] < 0;
  if (negative) {
    for (int64_t& limb : sum.limbs_) limb = -limb;
    sum.propagate();
  }
  int top = kLimbs - 1;
  while (top >= 0 && sum.limbs_[top] == 0) --top;
  if (top < 0) return 0;
  // The leading 64 bits and whether anything follows them: enough to round 53 bits once. Near
  // 2^-1074 fewer bits exist, and none follow.
  const auto limb = [&](int i) -> uint64_t {
    return i >= 0 ? static_cast<uint64_t>(sum.limbs_[i]) : 0;
  };
  const int width = std::bit_width(limb(top));
  uint64_t leading = limb(top) << (64 - width) | limb(top - 1) << (32 - width);
  leading |= width == 32 ? 0 : limb(top - 2) >> width;
  bool rest = width < 32 ? (limb(top - 2) & ((uint64_t{1} << width) - 1)) != 0 : limb(top - 2) != 0;
  for (int i = top - 3; i >= 0; --i) rest |= limb(i) != 0;
  const int exponent = 32 * top + width - 64 - 1074;  // of the last of the 64 bits
  // Bits below 2^-1074 are zero: dropping 11 or more of them is exact.
  const int dropped = 11;
  uint64_t kept = leading >> dropped;
  const uint64_t lost = leading & ((uint64_t{1} << dropped) - 1),
                 half = uint64_t{1} << (dropped - 1);
  if (lost > half || (lost == half && (rest || (kept & 1)))) ++kept;
  const double result = std::ldexp(static_cast<double>(kept), exponent + dropped);
  return negative ? -result : result;
}

}  // namespace weft::numerics
