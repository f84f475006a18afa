// The narrow formats, bit by bit. The oracle is independent of the conversion under test: the value
// of a code is written out from its fields with ldexp, and narrowing must give the nearest of all
// codes, found by search.
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/dtype.h"
#include "core/philox.h"

namespace weft {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Format {
  int exponent_bits, mantissa_bits;
  bool has_infinity;
  int codes() const { return 1 << (exponent_bits + mantissa_bits); }  // of one sign
};

template <class T>
Format format_of() {
  if constexpr (std::is_same_v<T, f16>) return {5, 10, true};
  if constexpr (std::is_same_v<T, bf16>) return {8, 7, true};
  if constexpr (std::is_same_v<T, f8e4m3>) return {4, 3, false};
  return {5, 2, true};
}

/// The value of a code without its sign, from the fields.
double value_of(const Format& format, int code) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int field = code >> format.mantissa_bits;
  const int mantissa = code & ((1 << format.mantissa_bits) - 1);
  if (field == (1 << format.exponent_bits) - 1) {
    if (format.has_infinity) return mantissa == 0 ? kInf : kNan;
    if (mantissa == (1 << format.mantissa_bits) - 1) return kNan;
  }
  const double fraction = std::ldexp(mantissa, -format.mantissa_bits);
  return field == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, field - bias);
}

/// Every value of a format, in order, and a last one beyond them all: where rounding overflows.
template <class T>
class Nearest {
 public:
  Nearest() : format_(format_of<T>()) {
    for (int code = 0; code < format_.codes(); ++code) {
      const double value = value_of(format_, code);
      if (!std::isfinite(value)) break;
      values_.push_back(value);
    }
    const size_t n = values_.size();
    values_.push_back(2 * values_[n - 1] - values_[n - 2]);
  }
  int largest_code() const { return static_cast<int>(values_.size()) - 2; }
  double largest() const { return values_[values_.size() - 2]; }

  /// The code of |x|: nearest, ties to the even code; one past the largest when it overflows.
  int operator()(double x) const {
    const auto above = std::lower_bound(values_.begin(), values_.end(), x);
    if (above == values_.end()) return largest_code() + 1;
    const int code = static_cast<int>(above - values_.begin());
    if (*above == x) return code;
    const double to_above = *above - x, to_below = x - values_[code - 1];
    if (to_above != to_below) return to_above < to_below ? code : code - 1;
    return code % 2 == 0 ? code : code - 1;
  }

 private:
  Format format_;
  std::vector<double> values_;
};

/// The code that T(x) must have, for x not NaN.
template <class T>
uint32_t expected_code(const Nearest<T>& nearest, double x) {
  const Format format = format_of<T>();
  const uint32_t sign = std::signbit(x) ? format.codes() : 0;
  const int code = nearest(std::abs(x));
  if (code <= nearest.largest_code()) return sign | code;
  // Beyond the largest: infinity has the next code; e4m3 has only NaN, S.1111.111, there.
  return sign | (nearest.largest_code() + 1);
}

/// Floats around everything where rounding decides: each code, each midpoint, their neighbours.
template <class T>
std::vector<float> decisive_floats() {
  const Format format = format_of<T>();
  std::vector<float> floats = {0.0f, 0x1p-149f, 0x1p-127f, 3.4028235e38f, HUGE_VALF};
  const auto push_around = [&](double value) {
    const float x = static_cast<float>(value);
    floats.push_back(x);
    floats.push_back(std::nextafter(x, 0.0f));
    floats.push_back(std::nextafter(x, HUGE_VALF));
  };
  for (int code = 0; code < format.codes(); ++code) {
    const double value = value_of(format, code);
    if (!std::isfinite(value)) break;
    push_around(value);
    const double next = value_of(format, code + 1);
    if (std::isfinite(next)) push_around((value + next) / 2);
  }
  const Nearest<T> nearest;
  push_around(nearest.largest() * (1 + std::ldexp(1.0, -format.mantissa_bits - 2)));
  push_around(nearest.largest() * 2);
  for (size_t i = 0, n = floats.size(); i < n; ++i) floats.push_back(-floats[i]);
  return floats;
}

TEMPLATE_TEST_CASE("every code widens to its value and narrows back", "", f16, bf16, f8e4m3,
                   f8e5m2) {
  using Bits = decltype(TestType::bits);
  const Format format = format_of<TestType>();
  int wrong = 0;
  for (int code = 0; code < 2 * format.codes(); ++code) {
    const TestType x = TestType::from_bits(static_cast<Bits>(code));
    const float wide = static_cast<float>(x);
    const double value = value_of(format, code % format.codes());
    const bool negative = code >= format.codes();
    if (std::isnan(value)) {
      wrong += !std::isnan(wide) || std::signbit(wide) != negative;
      wrong += !std::isnan(static_cast<float>(TestType(wide)));
      continue;
    }
    wrong += std::abs(static_cast<double>(wide)) != value || std::signbit(wide) != negative;
    wrong += TestType(wide).bits != x.bits;
    wrong += from_double<TestType>(static_cast<double>(wide)).bits != x.bits;
  }
  CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("narrowing rounds to the nearest code, ties to even", "", f16, bf16, f8e4m3,
                   f8e5m2) {
  const Nearest<TestType> nearest;
  int wrong = 0;
  float first_wrong = 0;
  const auto check = [&](float x) {
    if (std::isnan(x) || TestType(x).bits == expected_code(nearest, x)) return;
    if (wrong++ == 0) first_wrong = x;
  };
  for (float x : decisive_floats<TestType>()) check(x);
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 40009) {
    check(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  INFO("first wrong: " << first_wrong);
  CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("a double is rounded once, not by way of the nearest float", "", f16, bf16,
                   f8e4m3, f8e5m2) {
  const Nearest<TestType> nearest;
  int wrong = 0;
  const auto check = [&](double x) {
    wrong += from_double<TestType>(x).bits != expected_code(nearest, x);
  };
  for (float x : decisive_floats<TestType>()) {
    if (!std::isfinite(x)) continue;
    // Doubles that no float tells from x: through the nearest float they would tie.
    for (double direction : {-kInf, kInf}) check(std::nextafter(static_cast<double>(x), direction));
    check(x);
  }
  Philox random(7);
  for (int i = 0; i < 20000; ++i) {
    const double scale = std::ldexp(1.0, static_cast<int>(random.below(300)) - 150);
    check((random.uniform() - 0.5) * scale + random.uniform() * 0x1p-30 * scale);
  }
  for (double x : {1e300, -1e300, kInf, -kInf, 1e-300, -1e-300}) check(x);
  CHECK(wrong == 0);
}

TEST_CASE("ties, subnormals and overflow of each format by value") {
  CHECK(f16(65519.996f).bits == 0x7bff);
  CHECK(f16(65520.0f).bits == 0x7c00);
  CHECK(f16(0x1p-24f).bits == 1);
  CHECK(f16(0x1p-25f).bits == 0);
  CHECK(f16(0x1.000002p-25f).bits == 1);
  CHECK(f16(-0x1p-25f).bits == 0x8000);
  CHECK(bf16(0x1.01p0f).bits == 0x3f80);
  CHECK(bf16(0x1.03p0f).bits == 0x3f82);
  CHECK(bf16(3.4028235e38f).bits == 0x7f80);
  CHECK(bf16(0x1p-133f).bits == 1);
  CHECK(f8e4m3(448.0f).bits == 0x7e);
  CHECK(f8e4m3(464.0f).bits == 0x7e);
  CHECK(f8e4m3(464.1f).bits == 0x7f);
  CHECK(f8e4m3(-HUGE_VALF).bits == 0xff);
  CHECK(f8e4m3(0x1p-9f).bits == 1);
  CHECK(f8e4m3(0x1p-10f).bits == 0);
  CHECK(f8e5m2(57344.0f).bits == 0x7b);
  CHECK(f8e5m2(61440.0f).bits == 0x7c);
  CHECK(f8e5m2(HUGE_VALF).bits == 0x7c);
}

TEMPLATE_TEST_CASE("saturation gives the largest finite value", "", f16, f8e4m3, f8e5m2) {
  const Nearest<TestType> nearest;
  const uint32_t sign = format_of<TestType>().codes();
  const uint32_t largest = nearest.largest_code();
  for (float x : {HUGE_VALF, 3.4028235e38f, static_cast<float>(nearest.largest() * 1.5)}) {
    CHECK(TestType(x, Overflow::kSaturate).bits == largest);
    CHECK(TestType(-x, Overflow::kSaturate).bits == (sign | largest));
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(static_cast<float>(TestType(nan, Overflow::kSaturate))));
  int wrong = 0;
  for (float x : decisive_floats<TestType>()) {
    if (std::abs(x) > nearest.largest()) continue;
    wrong += TestType(x, Overflow::kSaturate).bits != TestType(x).bits;
  }
  CHECK(wrong == 0);
}

TEST_CASE("a NaN keeps its sign, and its leading payload where there is room") {
  const auto nan = [](uint32_t bits) { return std::bit_cast<float>(bits); };
  CHECK(f16(nan(0x7f800001u)).bits == 0x7e00);  // a payload that is cut off stays a NaN
  CHECK(f16(nan(0xff9fe000u)).bits == 0xfeff);
  CHECK(bf16(nan(0x7f800001u)).bits == 0x7fc0);
  CHECK(bf16(nan(0xffab1234u)).bits == 0xffeb);
  CHECK(f8e4m3(nan(0x7fc00000u)).bits == 0x7f);
  CHECK(f8e4m3(nan(0xffc00000u)).bits == 0xff);
  CHECK(f8e5m2(nan(0x7fc00000u)).bits == 0x7f);
  CHECK(f8e5m2(nan(0xff812345u)).bits == 0xff);
  CHECK(std::bit_cast<uint32_t>(static_cast<float>(f16::from_bits(0xfd55))) == 0xffeaa000u);
  CHECK(std::bit_cast<uint32_t>(tf32(nan(0xff801fffu)).value) == 0xffc00000u);
}

TEST_CASE("tf32 keeps ten mantissa bits, ties away from zero") {
  CHECK(tf32(0x1.002p0f).value == 0x1.004p0f);
  CHECK(tf32(-0x1.002p0f).value == -0x1.004p0f);
  CHECK(tf32(0x1.001ffep0f).value == 0x1.0p0f);
  CHECK(tf32(3.4028235e38f).value == HUGE_VALF);
  CHECK(tf32(HUGE_VALF).value == HUGE_VALF);
  CHECK(from_double<tf32>(1 + 0x1p-11 - 0x1p-50).value == 1.0f);
  CHECK(from_double<tf32>(1 + 0x1p-11 + 0x1p-50).value == 0x1.004p0f);
}

// The processor's own conversions, where it has them (F16C, since 2012).
__attribute__((target("avx,f16c"))) int count_f16c_mismatches() {
  int wrong = 0;
  for (uint64_t i = 0; i < (uint64_t{1} << 32); i += 251) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(i));
    wrong += f16(x).bits != static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
  }
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float wide = _cvtsh_ss(static_cast<uint16_t>(code));
    const float ours = static_cast<float>(f16::from_bits(static_cast<uint16_t>(code)));
    wrong += std::bit_cast<uint32_t>(ours) != std::bit_cast<uint32_t>(wide);
  }
  return wrong;
}

TEST_CASE("f16 agrees with F16C bit for bit, NaN included") {
  if (!__builtin_cpu_supports("avx2")) return;  // F16C, too, stands beside it
  CHECK(count_f16c_mismatches() == 0);
}

}  // namespace
}  // namespace weft
