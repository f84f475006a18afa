// Run-time choices as template arguments: the instance of a kernel that a problem takes.
//
//   with_flags(
//       [&](auto a_depth, auto b_depth) {
//         WEFT_LAUNCH((product_kernel<a_depth(), b_depth()>), grid, block, 0,
//         stream, p);
//       },
//       p.a.column == 1, p.b.row == 1);
#pragma once

#include <type_traits>

#include "core/dtype.h"

namespace weft::kernels {

/// Calls f with std::true_type or std::false_type for each flag.
template <class F, class... Flags>
void with_flags(F&& f, bool flag, Flags... others) {
  const auto with = [&](auto constant) {
    if constexpr (sizeof...(others) == 0) {
      f(constant);
    } else {
      with_flags([&](auto... constants) { f(constant, constants...); }, others...);
    }
  };
  flag ? with(std::true_type()) : with(std::false_type());
}

/// Calls f with a zero of the type that numbers of a dtype are computed in: double for f64, else
/// float.
template <class F>
void with_arithmetic_zero(DType dtype, F&& f) {
  dtype == DType::f64 ? f(0.0) : f(0.0f);
}

}  // namespace weft::kernels
