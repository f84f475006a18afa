// Element types of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "core/error.h"
#include "core/float_formats.h"

namespace weft {

enum class DType : uint8_t {
#define WEFT_DTYPE(id, name, type, precision) id,
#include "core/dtypes.inc"
#undef WEFT_DTYPE
};

inline constexpr DType kAllDTypes[] = {
#define WEFT_DTYPE(id, name, type, precision) DType::id,
#include "core/dtypes.inc"
#undef WEFT_DTYPE
};

/// "f32", "bf16", "bool", ...
std::string_view name(DType dtype);
/// The dtype of that name; throws Error listing all names.
DType parse_dtype(std::string_view name);

/// Bytes of one element.
size_t itemsize(DType dtype);
bool is_floating(DType dtype);
bool is_integral(DType dtype);  // i64, i32, u8; not bool

/// The type that holds the result of an op on both: the wider of two floats (f16 with bf16: f32;
/// an fp8 format with another float: the other), the float of a float and an integer, the wider
/// integer. bool gives way to everything.
DType promote(DType a, DType b);

/// Unit roundoff u = 2^-p of a floating type with p bits of precision.
double unit_roundoff(DType dtype);

template <class T>
struct TypeTag {
  using type = T;
};

/// Calls f(TypeTag<T>{}) with the C++ type that stores the dtype.
template <class F>
decltype(auto) visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
#define WEFT_DTYPE(id, name, type, precision) \
  case DType::id:                             \
    return f(TypeTag<type>{});
#include "core/dtypes.inc"
#undef WEFT_DTYPE
  }
  throw_internal_error("known dtype", __FILE__, __LINE__);
}

/// The dtype that T stores.
template <class T>
constexpr DType dtype_of() {
#define WEFT_DTYPE(id, name, type, precision) \
  if constexpr (std::is_same_v<T, type>)      \
    return DType::id;                         \
  else
#include "core/dtypes.inc"
#undef WEFT_DTYPE
  static_assert(sizeof(T) == 0, "not an element type");
}

/// The value as a double; exact but for i64 beyond 2^53.
template <class T>
constexpr double to_double(T x) {
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<double>(x);
  else
    return static_cast<double>(static_cast<float>(x));
}

/// A double as T. Narrow formats are reached through float, rounded to odd on the way so that the
/// two roundings equal one.
template <class T>
T from_double(double x);

}  // namespace weft

template <>
struct fmt::formatter<weft::DType> : weft::PlainFormatter {
  auto format(weft::DType dtype, fmt::format_context& context) const {
    return write(weft::name(dtype), context);
  }
};
