// Number formats against independent converters: F16C and CUDA's host headers for rounding to
// nearest even, over all floats; MPFR for the other roundings, at every boundary between codes and
// on random inputs. The exhaustive cases are tagged [long]; short ones take samples of the same.
#include "numerics/format.h"

#include <cpuid.h>
#include <immintrin.h>
#include <mpfr.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>

#include "core/dtype.h"
#include "core/parallel.h"
#include "core/philox.h"
#include "numerics/tensor_core.h"
#include "tests/skip.h"

#if __has_include(<cuda_fp8.h>)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#define WEFT_HAS_CUDA_HEADERS 1
#endif

using namespace weft;
using namespace weft::numerics;
using Catch::Matchers::Contains;

namespace {

constexpr uint64_t kAllFloats = uint64_t{1} << 32;

float from_bits(uint64_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits)); }
bool is_nan_bits(uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }

/// How often f says that its converters disagree on the float of bits i = 0, stride, 2 stride, ...
template <class F>
int64_t count_mismatches(uint64_t stride, F&& f) {
  std::atomic<int64_t> mismatches = 0;
  parallel_for(static_cast<int64_t>((kAllFloats + stride - 1) / stride), 1 << 16,
               [&](int64_t begin, int64_t end) {
                 int64_t mine = 0;
                 for (int64_t i = begin; i < end; ++i) {
                   mine += f(static_cast<uint32_t>(static_cast<uint64_t>(i) * stride));
                 }
                 mismatches += mine;
               });
  return mismatches;
}

// Stands for every float; a prime, so that all low bits occur.
constexpr uint64_t kSample = 1009;

FloatFormat format(const char* name) { return parse_format(name); }

bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) && __builtin_cpu_supports("avx");
}

__attribute__((target("avx,f16c"))) uint16_t f16c_narrow(float x) {
  return static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
}
__attribute__((target("avx,f16c"))) float f16c_widen(uint16_t x) { return _cvtsh_ss(x); }

void check_f16(uint64_t stride) {
  if (!has_f16c()) WEFT_SKIP("f16 against F16C: this CPU has none");
  const FloatFormat fp16 = format("fp16");
  CHECK(count_mismatches(stride, [&](uint32_t bits) {
          const float x = from_bits(bits);
          const uint16_t expected = f16c_narrow(x);
          return f16(x).bits != expected || fp16.encode(x) != expected;
        }) == 0);
}

void check_tf32(uint64_t stride) {
  const FloatFormat tf32_format = format("tf32");
  CHECK(count_mismatches(stride, [&](uint32_t bits) {
          const float x = from_bits(bits);
          const uint32_t stored = std::bit_cast<uint32_t>(static_cast<float>(tf32(x)));
          const uint64_t away = tf32_format.encode(x, {.rounding = Rounding::kNearestAway});
          const uint64_t even = tf32_format.encode(x);
          if (is_nan_bits(bits)) {
            return stored != ((bits | 0x400000u) & 0xffffe000u) || stored >> 13 != away ||
                   away != even;
          }
          const bool is_infinity = (bits & 0x7fffffffu) == 0x7f800000u;
          // What cvt.rna and rounding to nearest even add below the last bit that is kept.
          const uint32_t rna = is_infinity ? bits : (bits + 0x1000u) & 0xffffe000u;
          const uint32_t rne =
              is_infinity ? bits : (bits + 0xfffu + (bits >> 13 & 1)) & 0xffffe000u;
          return stored != rna || away != rna >> 13 || even != rne >> 13;
        }) == 0);
}

#if WEFT_HAS_CUDA_HEADERS
void check_bf16(uint64_t stride) {
  const FloatFormat bf16_format = format("bf16");
  CHECK(count_mismatches(stride, [&](uint32_t bits) {
          const float x = from_bits(bits);
          const uint16_t code = bf16(x).bits;
          const uint16_t expected = __nv_bfloat16_raw(__float2bfloat16_rn(x)).x;
          if (bf16_format.encode(x) != code) return true;
          return is_nan_bits(bits) ? (code & 0x7fffu) <= 0x7f80u || expected != 0x7fffu
                                   : code != expected;
        }) == 0);
}

template <class Stored>
void check_f8(const char* name, __nv_fp8_interpretation_t kind, uint64_t stride) {
  const FloatFormat f8_format = format(name);
  const float top_binade = std::ldexp(1.0f, f8_format.max_exponent());
  CHECK(count_mismatches(stride, [&](uint32_t bits) {
          const float x = from_bits(bits);
          const uint8_t code = Stored(x).bits;
          if (f8_format.encode(x) != code) return true;
          // CUDA's NaN and e4m3's overflow without saturation have no sign.
          const uint8_t expected = __nv_cvt_float_to_fp8(x, __NV_NOSAT, kind);
          const bool is_nan = (code & 0x7fu) == 0x7fu;
          if (is_nan ? (expected & 0x7fu) != 0x7fu : code != expected) return true;
          // Saturation matters from the top binade on, which is half of all floats.
          if (std::abs(x) < top_binade) return false;
          const uint8_t saturated = Stored(x, Overflow::kSaturate).bits;
          if (f8_format.encode(x, {.overflow = Overflow::kSaturate}) != saturated) return true;
          const uint8_t limit = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, kind);
          return is_nan_bits(bits) ? (saturated & 0x7fu) != 0x7fu || (limit & 0x7fu) != 0x7fu
                                   : saturated != limit;
        }) == 0);
}
#endif

void check_cuda_headers(uint64_t stride) {
#if WEFT_HAS_CUDA_HEADERS
  check_bf16(stride);
  check_f8<f8e4m3>("e4m3", __NV_E4M3, stride);
  check_f8<f8e5m2>("e5m2", __NV_E5M2, stride);
#else
  (void)stride;
  WEFT_SKIP("bf16 and fp8 against CUDA's host headers: no CUDA toolkit");
#endif
}

// What MPFR says -----------------------------------------------------------------------------

/// x in units of the format's last place, rounded by MPFR, as a value. x is finite.
class MpfrRounder {
 public:
  MpfrRounder() { mpfr_init2(x_, 128); }
  ~MpfrRounder() { mpfr_clear(x_); }
  MpfrRounder(const MpfrRounder&) = delete;
  MpfrRounder& operator=(const MpfrRounder&) = delete;

  enum class Mode { kNearestEven, kTowardZero, kNearestAway, kAwayFromZero };

  double round(double x, const FloatFormat& format, Mode mode) {
    if (x == 0) return x;
    mpfr_set_d(x_, x, MPFR_RNDN);
    // mpfr_get_exp is of a significand in [1/2, 1).
    const long leading = std::max<long>(mpfr_get_exp(x_) - 1, format.min_exponent());
    const long unit = leading - format.mantissa_bits();
    mpfr_mul_2si(x_, x_, -unit, MPFR_RNDN);
    switch (mode) {
      case Mode::kNearestEven:
        mpfr_rint(x_, x_, MPFR_RNDN);
        break;
      case Mode::kTowardZero:
        mpfr_trunc(x_, x_);
        break;
      case Mode::kNearestAway:
        mpfr_round(x_, x_);
        break;
      case Mode::kAwayFromZero:
        mpfr_rint(x_, x_, MPFR_RNDA);
        break;
    }
    mpfr_mul_2si(x_, x_, unit, MPFR_RNDN);
    return std::copysign(mpfr_get_d(x_, MPFR_RNDN), x);
  }

 private:
  mpfr_t x_;
};

/// The rounded value where the format cannot hold it.
double limited(double rounded, const FloatFormat& format, const Conversion& conversion) {
  const double magnitude = std::abs(rounded);
  double result = magnitude;
  if (magnitude > format.largest()) {
    const bool finite =
        conversion.overflow == Overflow::kSaturate || conversion.rounding == Rounding::kTowardZero;
    result = finite ? format.largest() : format.specials() == Specials::kNanOnly ? NAN : HUGE_VAL;
  }
  if (conversion.flush_subnormals && magnitude < format.smallest_normal()) result = 0;
  return std::copysign(result, rounded);
}

bool same(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

/// Whether every rounding, flush and saturation of x, a float or a double, agrees with MPFR's.
template <class T>
bool agrees_with_mpfr(MpfrRounder& mpfr, const FloatFormat& format, T x) {
  using Mode = MpfrRounder::Mode;
  const double even = mpfr.round(x, format, Mode::kNearestEven);
  const double zero = mpfr.round(x, format, Mode::kTowardZero);
  const double away = mpfr.round(x, format, Mode::kNearestAway);
  const double up = mpfr.round(x, format, Mode::kAwayFromZero);
  const bool is_tiny = std::abs(x) < std::ldexp(format.smallest_subnormal(), -64);
  for (const bool flush : {false, true}) {
    for (const Overflow overflow : {Overflow::kSpecial, Overflow::kSaturate}) {
      const auto matches = [&](Rounding rounding, uint64_t random, double expected) {
        const Conversion conversion = {rounding, flush, overflow};
        return same(format.decode(format.encode(x, conversion, random)),
                    limited(expected, format, conversion)) &&
               format.encode(x, conversion, random) ==
                   format.encode(static_cast<double>(x), conversion, random);
      };
      if (!matches(Rounding::kNearestEven, 0, even) || !matches(Rounding::kTowardZero, 0, zero) ||
          !matches(Rounding::kNearestAway, 0, away) ||
          // The least random number rounds away what is not exact, the largest never. A lost
          // fraction below 2^-64 is below what 64 random bits tell apart.
          !matches(Rounding::kStochastic, 0, is_tiny ? zero : up) ||
          !matches(Rounding::kStochastic, ~uint64_t{0}, zero)) {
        return false;
      }
    }
  }
  return true;
}

/// At each step-th code: its value, the middle to the next and the neighbours of both on both
/// sides.
int64_t check_boundaries(const FloatFormat& format, uint64_t step) {
  const uint64_t codes = uint64_t{1} << (format.bits() - 1);
  std::atomic<int64_t> mismatches = 0;
  parallel_for(static_cast<int64_t>(codes / step), 1 << 12, [&](int64_t begin, int64_t end) {
    MpfrRounder mpfr;
    int64_t mine = 0;
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t code = static_cast<uint64_t>(i) * step;
      double value = format.decode(code);
      if (std::isnan(value)) continue;
      // Beyond the largest number the boundary is where one more would lie.
      double next = format.decode(code + 1);
      if (!std::isfinite(next)) next = value + (value - format.decode(code - 1));
      const double middle = value + (next - value) / 2;
      for (const double at : {value, middle}) {
        const float x = static_cast<float>(at);
        if (!std::isfinite(x)) continue;
        for (const float near : {std::nextafter(x, -HUGE_VALF), x, std::nextafter(x, HUGE_VALF)}) {
          if (!std::isfinite(near)) continue;
          mine += !agrees_with_mpfr(mpfr, format, near);
          mine += !agrees_with_mpfr(mpfr, format, -near);
        }
      }
    }
    mismatches += mine;
  });
  return mismatches;
}

/// Random numbers: floats, half of them of any bits, half near the format's range; and of the
/// latter half as many doubles again, whose lower bits floats lack.
int64_t check_random(int64_t count) {
  std::vector<FloatFormat> formats = named_formats();
  formats.push_back(parse_format("e3m4fn"));
  formats.push_back(parse_format("e2m1"));
  std::atomic<int64_t> mismatches = 0;
  parallel_for(count, 1 << 14, [&](int64_t begin, int64_t end) {
    MpfrRounder mpfr;
    int64_t mine = 0;
    for (int64_t i = begin; i < end; ++i) {
      const auto words = philox4x32(11, 0, static_cast<uint64_t>(i));
      const FloatFormat& format = formats[words[1] % formats.size()];
      float x = from_bits(words[0]);
      if (words[2] & 1) {
        const int low = format.min_exponent() - format.mantissa_bits() - 2;
        const int range = format.max_exponent() + 2 - low;
        x = std::ldexp(1 + static_cast<float>(words[0] >> 9) * 0x1p-23f,
                       low + static_cast<int>(words[3] % static_cast<uint32_t>(range)));
        if (words[2] & 2) x = -x;
      }
      if (!std::isfinite(x)) continue;
      mine += !agrees_with_mpfr(mpfr, format, x);
      if ((words[2] & 5) == 5) {
        const double below = static_cast<double>(words[2] >> 3) * 0x1p-53;
        mine += !agrees_with_mpfr(mpfr, format, x * (1 + below));
      }
    }
    mismatches += mine;
  });
  return mismatches;
}

}  // namespace

TEST_CASE("f16 rounds to nearest even as F16C does, on a sample of all floats") {
  check_f16(kSample);
}
TEST_CASE("tf32 storage rounds ties away; other roundings can be had, on a sample") {
  check_tf32(kSample);
}
TEST_CASE("bf16 and fp8 round as CUDA's host headers do, on a sample") {
  check_cuda_headers(kSample);
}
TEST_CASE("f16 rounds to nearest even as F16C does, on all floats", "[.][long]") { check_f16(1); }
TEST_CASE("tf32 storage rounds ties away; other roundings can be had, on all floats", "[.][long]") {
  check_tf32(1);
}
TEST_CASE("bf16 and fp8 round as CUDA's host headers do, on all floats", "[.][long]") {
  check_cuda_headers(1);
}

TEST_CASE("Every code widens to the value that the other converters give") {
  const auto widened = [](const char* name, int bits, auto widen) {
    const FloatFormat f = format(name);
    int different = 0;
    for (uint32_t code = 0; code < 1u << bits; ++code) {
      const float expected = widen(code);
      const double value = f.decode(code);
      different += std::isnan(expected) ? !std::isnan(value) : !same(value, expected);
      // Back again: the same code, or for a NaN a NaN.
      const uint64_t back = f.encode(value);
      different += std::isnan(expected) ? !std::isnan(f.decode(back)) : back != code;
    }
    INFO(name);
    CHECK(different == 0);
  };
  widened("fp16", 16, [](uint32_t c) { return float(f16::from_bits(static_cast<uint16_t>(c))); });
  widened("bf16", 16, [](uint32_t c) { return float(bf16::from_bits(static_cast<uint16_t>(c))); });
  widened("e4m3", 8, [](uint32_t c) { return float(f8e4m3::from_bits(static_cast<uint8_t>(c))); });
  widened("e5m2", 8, [](uint32_t c) { return float(f8e5m2::from_bits(static_cast<uint8_t>(c))); });
  widened("tf32", 19, [](uint32_t c) { return from_bits(c << 13); });
  if (has_f16c()) {
    widened("fp16", 16, [](uint32_t c) { return f16c_widen(static_cast<uint16_t>(c)); });
  }
#if WEFT_HAS_CUDA_HEADERS
  const auto f8 = [](__nv_fp8_interpretation_t kind) {
    return [kind](uint32_t c) {
      return __half2float(__half(__nv_cvt_fp8_to_halfraw(static_cast<uint8_t>(c), kind)));
    };
  };
  widened("e4m3", 8, f8(__NV_E4M3));
  widened("e5m2", 8, f8(__NV_E5M2));
  widened("bf16", 16, [](uint32_t c) {
    return __bfloat162float(__nv_bfloat16(__nv_bfloat16_raw{static_cast<unsigned short>(c)}));
  });
#else
  WEFT_SKIP("widening of bf16 and fp8 against CUDA's host headers: no CUDA toolkit");
#endif
}

TEST_CASE("Every rounding agrees with MPFR around every boundary of the narrow formats") {
  for (const char* name : {"e4m3", "e5m2", "e3m4fn", "e2m1", "e4m3fn"}) {
    INFO(name);
    CHECK(check_boundaries(format(name), 1) == 0);
  }
  for (const char* name : {"fp16", "bf16"}) {
    INFO(name);
    CHECK(check_boundaries(format(name), 7) == 0);
  }
  CHECK(check_boundaries(format("tf32"), 101) == 0);
}

TEST_CASE("Every rounding agrees with MPFR on random floats") { CHECK(check_random(1 << 17) == 0); }

TEST_CASE("Every rounding agrees with MPFR around every boundary of fp16, bf16 and tf32",
          "[.][long]") {
  for (const char* name : {"fp16", "bf16", "tf32"}) {
    INFO(name);
    CHECK(check_boundaries(format(name), 1) == 0);
  }
}

TEST_CASE("Every rounding agrees with MPFR on 2^24 random floats", "[.][long]") {
  CHECK(check_random(1 << 24) == 0);
}

TEST_CASE("Stochastic rounding is unbiased, and exact values stay") {
  Philox random(1);
  const Conversion conversion = {.rounding = Rounding::kStochastic};
  for (const char* name : {"fp16", "e4m3", "e5m2"}) {
    const FloatFormat f = format(name);
    for (const double x : {1 + 0.3 * f.epsilon(), -1 - 0.9 * f.epsilon(),
                           0.25 * f.smallest_subnormal(), 0x1p-30 * f.smallest_subnormal()}) {
      constexpr int kDraws = 20000;
      double sum = 0;
      for (int i = 0; i < kDraws; ++i) sum += f.round(x, conversion, random.next_u64());
      const double low = f.round(x, {.rounding = Rounding::kTowardZero});
      const double step = std::abs(x) >= 1 ? f.epsilon() : f.smallest_subnormal();
      const double p = std::abs(x - low) / step;
      INFO(name << ", " << x);
      // Five standard deviations of a mean of Bernoulli draws.
      const double tolerance = 5 * step * std::sqrt(p * (1 - p) / kDraws) + 1e-12 * step;
      CHECK(std::abs(sum / kDraws - x) <= tolerance);
    }
    for (int i = 0; i < 100; ++i) CHECK(f.round(1.5, conversion, random.next_u64()) == 1.5);
  }
}

TEST_CASE("A format says its range and precision") {
  const FloatFormat fp16 = format("fp16"), e4m3 = format("e4m3"), e5m2 = format("e5m2");
  CHECK(fp16.largest() == 65504);
  CHECK(fp16.smallest_normal() == 0x1p-14);
  CHECK(fp16.smallest_subnormal() == 0x1p-24);
  CHECK(fp16.epsilon() == 0x1p-10);
  CHECK(e4m3.largest() == 448);
  CHECK(e5m2.largest() == 57344);
  CHECK(format("bf16").largest() == 0x1.fep127);
  CHECK(format("fp32").largest() == std::numeric_limits<float>::max());
  CHECK(format("e11m52").largest() == std::numeric_limits<double>::max());
  CHECK(format("e11m52").encode(0.1) == std::bit_cast<uint64_t>(0.1));
  CHECK(format("e2m1").largest() == 3);
  CHECK(format("e2m1fn").largest() == 4);
  for (const DType dtype : {DType::f16, DType::bf16, DType::tf32, DType::f8e4m3, DType::f8e5m2}) {
    const std::map<DType, const char*> names = {{DType::f16, "fp16"},
                                                {DType::bf16, "bf16"},
                                                {DType::tf32, "tf32"},
                                                {DType::f8e4m3, "e4m3"},
                                                {DType::f8e5m2, "e5m2"}};
    CHECK(format(names.at(dtype)).unit_roundoff() == unit_roundoff(dtype));
  }
}

TEST_CASE("Impossible formats are refused") {
  CHECK_THROWS_WITH(parse_format("e1m2"), "format e1m2: expected 2 to 11 exponent bits, got 1");
  CHECK_THROWS_WITH(parse_format("e12m2"), Contains("got 12"));
  CHECK_THROWS_WITH(parse_format("e5m0"), "format e5m0: expected 1 to 52 mantissa bits, got 0");
  CHECK_THROWS_WITH(parse_format("e5m53"), Contains("got 53"));
  CHECK_THROWS_WITH(parse_format("e11m3fn"), Contains("2 to 10 exponent bits without infinities"));
  for (const char* name : {"", "fp17", "e5", "e5m", "em2", "e5m2x", "e5m2fnx", "e-5m2", "E5M2"}) {
    INFO(name);
    CHECK_THROWS_WITH(parse_format(name), Contains("unknown format"));
  }
  CHECK_THROWS_WITH(FixedFormat(0, 0), Contains("1 to 53 bits"));
  CHECK_THROWS_WITH(FixedFormat(50, 10), Contains("q50.10"));
}

TEST_CASE("The tensor core truncates tf32 operands, storage rounds them") {
  const FloatFormat f = format("tf32");
  const TensorCoreModel model = tensor_core_model("a100", DType::tf32);
  Philox random(2);
  const std::vector<float> one = {1};
  for (int i = 0; i < 10000; ++i) {
    const std::vector<float> x = {static_cast<float>(random.normal())};
    CHECK(tensor_core_dot(model, x, one, 0) == f.round(x[0], {.rounding = Rounding::kTowardZero}));
    CHECK(static_cast<double>(static_cast<float>(tf32(x[0]))) ==
          f.round(x[0], {.rounding = Rounding::kNearestAway}));
  }
}

TEST_CASE("Fixed point rounds as told and saturates") {
  const FixedFormat q(3, 4);
  CHECK(q.name() == "q3.4");
  CHECK(q.bits() == 8);
  CHECK(q.largest() == 8 - 0x1p-4);
  CHECK(q.smallest() == -8);
  CHECK(q.step() == 0x1p-4);
  const auto round = [&](double x, Rounding rounding, uint64_t random = 0) {
    return q.decode(q.encode(x, rounding, random));
  };
  CHECK(round(0x1.8p-4, Rounding::kNearestEven) == 0x1p-3);
  CHECK(round(0x1p-5, Rounding::kNearestEven) == 0);
  CHECK(round(0x1p-5, Rounding::kNearestAway) == 0x1p-4);
  CHECK(round(-0x1p-5, Rounding::kNearestAway) == -0x1p-4);
  CHECK(round(-0x1.fp-4, Rounding::kTowardZero) == -0x1p-4);
  CHECK(round(0x1p-5, Rounding::kStochastic, uint64_t{1} << 62) == 0x1p-4);
  CHECK(round(0x1p-5, Rounding::kStochastic, uint64_t{3} << 62) == 0);
  CHECK(round(100, Rounding::kNearestEven) == q.largest());
  CHECK(round(-100, Rounding::kNearestEven) == -8);
  CHECK(round(7.99, Rounding::kNearestEven) == q.largest());
  CHECK(round(-7.99, Rounding::kNearestEven) == -8);
  CHECK(round(HUGE_VAL, Rounding::kTowardZero) == q.largest());
  CHECK(round(NAN, Rounding::kNearestEven) == 0);
  CHECK(round(1e-300, Rounding::kNearestEven) == 0);
  // Against llrint on many values.
  Philox random(3);
  const FixedFormat wide(10, 20);
  for (int i = 0; i < 10000; ++i) {
    const double x = std::ldexp(random.normal(), static_cast<int>(random.below(9)));
    CHECK(wide.encode(x) == std::llrint(std::ldexp(x, 20)));
    CHECK(wide.encode(x, Rounding::kTowardZero) == std::trunc(std::ldexp(x, 20)));
    CHECK(wide.encode(x, Rounding::kNearestAway) == std::llround(std::ldexp(x, 20)));
  }
}
