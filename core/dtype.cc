#include "core/dtype.h"

#include <fmt/ranges.h>

#include <cmath>
#include <limits>

namespace weft {
namespace {

struct Traits {
  std::string_view name;
  size_t itemsize;
  int precision;  // significand bits, the implicit one included; 0: not floating
};

constexpr Traits kTraits[] = {
#define WEFT_DTYPE(id, name, type, precision) {name, sizeof(type), precision},
#include "core/dtypes.inc"
#undef WEFT_DTYPE
};

const Traits& traits(DType dtype) { return kTraits[static_cast<size_t>(dtype)]; }

}  // namespace

std::string_view name(DType dtype) { return traits(dtype).name; }
size_t itemsize(DType dtype) { return traits(dtype).itemsize; }
bool is_floating(DType dtype) { return traits(dtype).precision > 0; }
bool is_integral(DType dtype) { return !is_floating(dtype) && dtype != DType::boolean; }

DType parse_dtype(std::string_view text) {
  for (DType dtype : kAllDTypes) {
    if (name(dtype) == text) return dtype;
  }
  WEFT_FAIL("unknown dtype \"{}\": expected one of {}", text, fmt::join(kAllDTypes, ", "));
}

double unit_roundoff(DType dtype) {
  WEFT_ASSERT(is_floating(dtype));
  return std::ldexp(1.0, -traits(dtype).precision);
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (a == DType::boolean) return b;
  if (b == DType::boolean) return a;
  if (is_floating(a) != is_floating(b)) return is_floating(a) ? a : b;
  // f16 with bf16, f32 with tf32, one fp8 format with the other; no two integers have one size.
  if (itemsize(a) == itemsize(b)) return DType::f32;
  return itemsize(a) > itemsize(b) ? a : b;
}

template <class T>
T from_double(double x) {
  if constexpr (std::is_same_v<T, bool>) {
    return x != 0;
  } else if constexpr (std::is_integral_v<T>) {
    // As casts do: saturating, NaN to 0.
    using Limits = std::numeric_limits<T>;
    if (std::isnan(x)) return 0;
    if (x <= static_cast<double>(Limits::min())) return Limits::min();
    return x >= static_cast<double>(Limits::max()) ? Limits::max() : static_cast<T>(x);
  } else if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(x);
  } else {
    float y = static_cast<float>(x);
    if (static_cast<double>(y) != x && std::isfinite(y)) {
      // Round to odd: of the two floats around x take the one with an odd last bit.
      if (std::abs(static_cast<double>(y)) > std::abs(x)) y = std::nextafter(y, 0.0f);
      y = std::bit_cast<float>(std::bit_cast<uint32_t>(y) | 1u);
    }
    return T(y);
  }
}

#define WEFT_DTYPE(id, name, type, precision) template type from_double(double);
#include "core/dtypes.inc"
#undef WEFT_DTYPE

}  // namespace weft
