// The fields of a plain struct, visited one by one: how the tests find the tensors of any problem
// without being told.
//
// The number of fields is the largest number of initialisers that the aggregate takes; structured
// bindings then name them. The struct has no base, no C arrays, and at most kMaxFields fields.
#pragma once

#include <type_traits>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "kernels/multi_tensor/step_gate.h"

namespace weft::kernels {

namespace fields {

/// Initialises any field. Never defined: it only stands in unevaluated expressions.
struct Anything {
  template <class T>
  operator T() const;
};

template <class T, size_t... i>
constexpr bool takes(std::index_sequence<i...>) {
  return requires { T{(static_cast<void>(i), Anything{})...}; };
}

inline constexpr int kMaxFields = 24;

template <class T, int n = kMaxFields>
constexpr int count() {
  static_assert(std::is_aggregate_v<T> && n > 0);
  if constexpr (takes<T>(std::make_index_sequence<n>())) {
    return n;
  } else {
    return count<T, n - 1>();
  }
}

}  // namespace fields

/// Calls f(field) for each field, in the order of declaration.
template <class T, class F>
void for_each_field(T& object, F&& f) {
  constexpr int n = fields::count<std::remove_const_t<T>>();
  const auto all = [&](auto&... field) { (f(field), ...); };
#define WEFT_FIELDS(count, ...)   \
  if constexpr (n == count) {     \
    auto& [__VA_ARGS__] = object; \
    all(__VA_ARGS__);             \
  }
  WEFT_FIELDS(1, a)
  WEFT_FIELDS(2, a, b)
  WEFT_FIELDS(3, a, b, c)
  WEFT_FIELDS(4, a, b, c, d)
  WEFT_FIELDS(5, a, b, c, d, e)
  WEFT_FIELDS(6, a, b, c, d, e, g)
  WEFT_FIELDS(7, a, b, c, d, e, g, h)
  WEFT_FIELDS(8, a, b, c, d, e, g, h, i)
  WEFT_FIELDS(9, a, b, c, d, e, g, h, i, j)
  WEFT_FIELDS(10, a, b, c, d, e, g, h, i, j, k)
  WEFT_FIELDS(11, a, b, c, d, e, g, h, i, j, k, l)
  WEFT_FIELDS(12, a, b, c, d, e, g, h, i, j, k, l, m)
  WEFT_FIELDS(13, a, b, c, d, e, g, h, i, j, k, l, m, o)
  WEFT_FIELDS(14, a, b, c, d, e, g, h, i, j, k, l, m, o, p)
  WEFT_FIELDS(15, a, b, c, d, e, g, h, i, j, k, l, m, o, p, q)
  WEFT_FIELDS(16, a, b, c, d, e, g, h, i, j, k, l, m, o, p, q, r)
  WEFT_FIELDS(17, a, b, c, d, e, g, h, i, j, k, l, m, o, p, q, r, s)
  WEFT_FIELDS(18, a, b, c, d, e, g, h, i, j, k, l, m, o, p, q, r, s, t)
  WEFT_FIELDS(19, a, b, c, d, e, g, h, i, j, k, l, m, o, p, q, r, s, t, u)
  WEFT_FIELDS(20, a, b, c, d, e, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v)
#undef WEFT_FIELDS
  static_assert(n <= 20, "give WEFT_FIELDS another row");
}

/// Calls f(tensor) for each tensor among the fields, those in vectors and in a gate too.
template <class T, class F>
void for_each_tensor(T& object, F&& f) {
  for_each_field(object, [&](auto& field) {
    using Field = std::remove_const_t<std::remove_reference_t<decltype(field)>>;
    if constexpr (std::is_same_v<Field, Tensor>) {
      f(field);
    } else if constexpr (std::is_same_v<Field, std::vector<Tensor>>) {
      for (auto& tensor : field) f(tensor);
    } else if constexpr (std::is_same_v<Field, StepGate>) {
      for_each_tensor(field, f);
    }
  });
}

}  // namespace weft::kernels
