// Element types of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "core/error.h"
#include "core/float_formats.h"

namespace weft {

enum class DType : uint8_t { f64, f32, tf32, f16, bf16, f8e4m3, f8e5m2, i64, i32, u8, boolean };

inline constexpr DType kAllDTypes[] = {DType::f64,  DType::f32,    DType::tf32,   DType::f16,
                                       DType::bf16, DType::f8e4m3, DType::f8e5m2, DType::i64,
                                       DType::i32,  DType::u8,     DType::boolean};

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
    case DType::f64:
      return f(TypeTag<double>{});
    case DType::f32:
      return f(TypeTag<float>{});
    case DType::tf32:
      return f(TypeTag<tf32>{});
    case DType::f16:
      return f(TypeTag<f16>{});
    case DType::bf16:
      return f(TypeTag<bf16>{});
    case DType::f8e4m3:
      return f(TypeTag<f8e4m3>{});
    case DType::f8e5m2:
      return f(TypeTag<f8e5m2>{});
    case DType::i64:
      return f(TypeTag<int64_t>{});
    case DType::i32:
      return f(TypeTag<int32_t>{});
    case DType::u8:
      return f(TypeTag<uint8_t>{});
    case DType::boolean:
      return f(TypeTag<bool>{});
  }
  throw_internal_error("known dtype", __FILE__, __LINE__);
}

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, double>)
    return DType::f64;
  else if constexpr (std::is_same_v<T, float>)
    return DType::f32;
  else if constexpr (std::is_same_v<T, tf32>)
    return DType::tf32;
  else if constexpr (std::is_same_v<T, f16>)
    return DType::f16;
  else if constexpr (std::is_same_v<T, bf16>)
    return DType::bf16;
  else if constexpr (std::is_same_v<T, f8e4m3>)
    return DType::f8e4m3;
  else if constexpr (std::is_same_v<T, f8e5m2>)
    return DType::f8e5m2;
  else if constexpr (std::is_same_v<T, int64_t>)
    return DType::i64;
  else if constexpr (std::is_same_v<T, int32_t>)
    return DType::i32;
  else if constexpr (std::is_same_v<T, uint8_t>)
    return DType::u8;
  else {
    static_assert(std::is_same_v<T, bool>, "not an element type");
    return DType::boolean;
  }
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
