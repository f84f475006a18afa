// Every pair of dtypes of which one is f64, f32 or i64 has its own loop; the others pass through
// the arithmetic type of the source, which holds it exactly. f32 <-> f16, bf16 are vectors; the
// plain loops between f64, f32 and integers are left to the compiler's vectoriser.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/convert.cc"
#include "core/simd/targets_inl.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "kernels/elementwise/convert.h"
#include "kernels/elementwise/convert_element.h"
#include "kernels/simd/convert_inl.h"

#ifndef WEFT_KERNELS_ELEMENTWISE_CONVERT_SCALAR
#define WEFT_KERNELS_ELEMENTWISE_CONVERT_SCALAR
namespace weft::kernels {
namespace {

template <class T>
constexpr bool kIsArithmetic =
    std::is_same_v<T, double> || std::is_same_v<T, float> || std::is_same_v<T, int64_t>;

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, f16> || std::is_same_v<T, bf16>;

template <class T>
const std::array<float, 256>& fp8_values() {
  static const std::array<float, 256> kValues = [] {
    std::array<float, 256> values{};
    for (int i = 0; i < 256; ++i) {
      values[i] = static_cast<float>(T::from_bits(static_cast<uint8_t>(i)));
    }
    return values;
  }();
  return kValues;
}

}  // namespace
}  // namespace weft::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

template <class From, class To>
void convert_loop(const void* source, void* target, int64_t n) {
  const auto* x = static_cast<const Stored<From>*>(source);
  auto* y = static_cast<Stored<To>*>(target);
  int64_t i = 0;
  if constexpr (std::is_same_v<To, float> && std::is_same_v<From, tf32>) {
    std::memcpy(y, x, n * sizeof(float));
    return;
  } else if constexpr ((std::is_same_v<To, float> && kIsHalf<From>) ||
                       (std::is_same_v<From, float> && kIsHalf<To>)) {
    const F32 d;
    const int64_t lanes = hn::Lanes(d);
    for (; i + lanes <= n; i += lanes) store_f32(d, load_f32(d, x + i), y + i);
  } else if constexpr (sizeof(From) == 1 && !std::is_arithmetic_v<From> &&
                       std::is_floating_point_v<To>) {
    const std::array<float, 256>& values = fp8_values<From>();
    for (; i < n; ++i) y[i] = static_cast<To>(values[x[i].bits]);
    return;
  }
  for (; i < n; ++i) y[i] = convert_element<From, To>(x[i]);
}

bool convert_direct(const void* x, DType from, void* y, DType to, int64_t n) {
  return visit_dtype(from, [&]<class From>(TypeTag<From>) {
    return visit_dtype(to, [&]<class To>(TypeTag<To>) {
      if constexpr (kIsArithmetic<From> || kIsArithmetic<To>) {
        convert_loop<From, To>(x, y, n);
        return true;
      } else {
        return false;
      }
    });
  });
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(convert_direct);

void convert(const void* x, DType from, void* y, DType to, int64_t n) {
  if (from == to) {
    std::memcpy(y, x, n * itemsize(from));
    return;
  }
  if (HWY_DYNAMIC_DISPATCH(convert_direct)(x, from, y, to, n)) return;
  constexpr int64_t kChunk = 512;
  alignas(64) unsigned char exact[kChunk * sizeof(double)];
  const DType middle = arithmetic_type(from);
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t m = std::min(kChunk, n - i);
    const auto* source = static_cast<const unsigned char*>(x) + i * itemsize(from);
    auto* target = static_cast<unsigned char*>(y) + i * itemsize(to);
    HWY_DYNAMIC_DISPATCH(convert_direct)(source, from, exact, middle, m);
    HWY_DYNAMIC_DISPATCH(convert_direct)(exact, middle, target, to, m);
  }
}

}  // namespace weft::kernels
#endif
