#include "numerics/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace weft::numerics {
namespace {

// Each addition grows a limb by less than 2^32.
constexpr int kAdditionsBetweenCarries = 1 << 29;

}  // namespace

ExactSum::ExactSum(std::span<const int64_t, kWords> words) {
  std::ranges::copy(words.first<kLimbs>(), limbs_.begin());
  std::ranges::copy(words.last<3>(), specials_.begin());
  propagate_carries();
}

std::array<int64_t, ExactSum::kWords> ExactSum::words() const {
  ExactSum sum = *this;
  sum.propagate_carries();
  std::array<int64_t, kWords> words;
  std::ranges::copy(sum.limbs_, words.begin());
  std::ranges::copy(sum.specials_, words.begin() + kLimbs);
  return words;
}

void ExactSum::add(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const int field = static_cast<int>(bits >> 52 & 0x7ff);
  const bool is_negative = bits >> 63;
  uint64_t significand = bits & ((uint64_t{1} << 52) - 1);
  if (field == 0x7ff) {
    ++specials_[significand != 0 ? 0 : is_negative ? 2 : 1];
    return;
  }
  if (field != 0) significand |= uint64_t{1} << 52;
  const int position = field == 0 ? 0 : field - 1;  // of its last bit, above 2^-1074
  const int limb = position / 32, shift = position % 32;
  // 53 bits shifted by up to 31: three limbs.
  const unsigned __int128 wide = static_cast<unsigned __int128>(significand) << shift;
  const int64_t sign = is_negative ? -1 : 1;
  for (int i = 0; i < 3; ++i) {
    limbs_[limb + i] += sign * static_cast<int64_t>(static_cast<uint32_t>(wide >> (32 * i)));
  }
  if (++pending_ == kAdditionsBetweenCarries) propagate_carries();
}

void ExactSum::add(const ExactSum& other) {
  const std::array<int64_t, kWords> theirs = other.words();
  propagate_carries();
  for (int i = 0; i < kLimbs; ++i) limbs_[i] += theirs[i];
  for (int i = 0; i < 3; ++i) specials_[i] += theirs[kLimbs + i];
  ++pending_;
}

void ExactSum::propagate_carries() {
  for (int i = 0; i + 1 < kLimbs; ++i) {
    const int64_t carry = limbs_[i] >> 32;  // toward minus infinity: the limb becomes non-negative
    limbs_[i] -= carry * (int64_t{1} << 32);
    limbs_[i + 1] += carry;
  }
  pending_ = 0;
}

double ExactSum::value() const { return rounded(Rounding::kNearestEven); }
double ExactSum::value_to_odd() const { return rounded(Rounding::kOdd); }

double ExactSum::rounded(Rounding rounding) const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto [nans, positive, negative] = specials_;
  if (nans > 0 || (positive > 0 && negative > 0)) return std::nan("");
  if (positive > 0) return kInfinity;
  if (negative > 0) return -kInfinity;

  ExactSum sum = *this;
  sum.propagate_carries();
  const bool is_negative = sum.limbs_[kLimbs - 1] < 0;
  if (is_negative) {
    for (int64_t& limb : sum.limbs_) limb = -limb;
    sum.propagate_carries();
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
  if (rounding == Rounding::kOdd) {
    kept |= lost != 0 || rest ? 1 : 0;
  } else if (lost > half || (lost == half && (rest || (kept & 1)))) {
    ++kept;
  }
  const double result = std::ldexp(static_cast<double>(kept), exponent + dropped);
  return is_negative ? -result : result;
}

}  // namespace weft::numerics
