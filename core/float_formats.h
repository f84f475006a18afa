// The narrow floating-point formats as storage types, converted bit-exactly from and to float.
//
// Rounding is to nearest, ties to even, subnormals kept (IEEE 754-2019 section 4.3.1), but for
// tf32, which rounds ties away from zero as the GPU's cvt.rna.tf32.f32 does (PTX ISA, cvt).
//
// NaN policy: a NaN stays a NaN and keeps its sign. f16 and bf16 keep the payload's leading bits
// and set the quiet bit, as F16C and IEEE 754-2019 section 6.2.3 do; the fp8 formats have one code
// per sign, S.1111.111 (OCP 8-bit floating point specification, table 1; CUDA's for e5m2). A code
// that is a NaN widens to a quiet NaN with the same leading payload.
//
// Overflow: f16, bf16 and e5m2 round to infinity. e4m3 has none: the unsaturated conversion gives
// NaN. The saturating conversions give the largest finite value, also for infinities.
#pragma once

#include <bit>
#include <cstdint>

namespace weft {

enum class Overflow { kSpecial, kSaturate };

/// The code of `value` in a format of E exponent and M mantissa bits, rounded to nearest even.
/// HasInfinity: the top exponent holds infinities and NaNs (IEEE); else only its last code is NaN.
template <int E, int M, bool HasInfinity>
constexpr uint32_t narrow_float(float value, Overflow overflow = Overflow::kSpecial) {
  constexpr int kMinExponent = 2 - (1 << (E - 1));
  constexpr uint32_t kTop = (1u << E) - 1;
  constexpr uint32_t kMaxFinite = HasInfinity ? (kTop << M) - 1 : (kTop << M) | ((1u << M) - 2);
  constexpr uint32_t kNan = (kTop << M) | ((1u << M) - 1);
  constexpr uint32_t kOverflowCode = HasInfinity ? kTop << M : kNan;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 31) << (E + M);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    constexpr bool kKeepsPayload = HasInfinity && E + M >= 15;
    if (!kKeepsPayload) return sign | kNan;
    return sign | (kTop << M) | (1u << (M - 1)) | ((magnitude & 0x7fffffu) >> (23 - M));
  }
  const uint32_t limit = overflow == Overflow::kSaturate ? kMaxFinite : kOverflowCode;
  if (magnitude == 0x7f800000u) return sign | limit;
  static_assert(E < 8);  // a float's subnormals are far below half of the smallest of the format
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
  int shift = 23 - M;
  if (exponent < kMinExponent) shift += kMinExponent - exponent;
  if (shift > 25) return sign;  // below half of the smallest subnormal
  uint32_t code = significand >> shift;
  const uint32_t rest = significand & ((1u << shift) - 1);
  const uint32_t half = 1u << (shift - 1);
  if (rest > half || (rest == half && (code & 1))) ++code;
  // A carry out of the mantissa ripples into the exponent field, where it belongs.
  if (exponent >= kMinExponent) code += static_cast<uint32_t>(exponent - kMinExponent) << M;
  return sign | (code > kMaxFinite ? limit : code);
}

/// The exact value of a code.
template <int E, int M, bool HasInfinity>
constexpr float widen_float(uint32_t code) {
  constexpr int kMinExponent = 2 - (1 << (E - 1));
  constexpr uint32_t kTop = (1u << E) - 1;
  const uint32_t sign = (code >> (E + M)) << 31;
  const uint32_t field = (code >> M) & kTop;
  uint32_t mantissa = code & ((1u << M) - 1);
  const bool is_nan =
      HasInfinity ? field == kTop && mantissa != 0 : field == kTop && mantissa == (1u << M) - 1;
  if (is_nan) return std::bit_cast<float>(sign | 0x7fc00000u | (mantissa << (23 - M)));
  if (HasInfinity && field == kTop) return std::bit_cast<float>(sign | 0x7f800000u);
  int exponent = static_cast<int>(field) - 1 + kMinExponent;
  if (field == 0) {
    if (mantissa == 0) return std::bit_cast<float>(sign);
    exponent = kMinExponent;
    while ((mantissa & (1u << M)) == 0) {
      mantissa <<= 1;
      --exponent;
    }
    mantissa &= (1u << M) - 1;
  }
  return std::bit_cast<float>(sign | (static_cast<uint32_t>(exponent + 127) << 23) |
                              (mantissa << (23 - M)));
}

/// A stored number of E exponent and M mantissa bits.
template <class Bits, int E, int M, bool HasInfinity>
struct NarrowFloat {
  Bits bits = 0;

  NarrowFloat() = default;
  constexpr explicit NarrowFloat(float value, Overflow overflow = Overflow::kSpecial)
      : bits(static_cast<Bits>(narrow_float<E, M, HasInfinity>(value, overflow))) {}
  constexpr explicit operator float() const { return widen_float<E, M, HasInfinity>(bits); }
  static constexpr NarrowFloat from_bits(Bits bits) {
    NarrowFloat x;
    x.bits = bits;
    return x;
  }
};

using f16 = NarrowFloat<uint16_t, 5, 10, true>;
using f8e4m3 = NarrowFloat<uint8_t, 4, 3, false>;
using f8e5m2 = NarrowFloat<uint8_t, 5, 2, true>;

/// bfloat16: the upper half of a float, so that widening is a shift and narrowing an addition.
struct bf16 {
  uint16_t bits = 0;

  bf16() = default;
  constexpr explicit bf16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits =
        static_cast<uint16_t>(is_nan ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  constexpr explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
  static constexpr bf16 from_bits(uint16_t bits) {
    bf16 x;
    x.bits = bits;
    return x;
  }
};

/// TensorFloat-32: a float whose low 13 mantissa bits are zero.
struct tf32 {
  float value = 0;

  tf32() = default;
  constexpr explicit tf32(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    const bool is_special = (u & 0x7f800000u) == 0x7f800000u;
    const uint32_t quiet_nan = (u | 0x400000u) & 0xffffe000u;
    const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
    value = std::bit_cast<float>(is_nan ? quiet_nan : is_special ? u : (u + 0x1000u) & 0xffffe000u);
  }
  constexpr explicit operator float() const { return value; }
};

}  // namespace weft
