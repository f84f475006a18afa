// Shapes and dtypes that sort is tested and timed on.
#pragma once

#include <limits>

#include "kernels/sort/sort.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

inline OpTable sort_table() {
  using Problem = SortProblem;
  std::vector<Case<Problem>> cases;
  // many: random numbers of which few are equal; else a few integers, most of them many times.
  const auto add = [&](Shape shape, int axis, DType dtype, int64_t kept, bool descending, bool many,
                       bool strided = false, Cost cost = {}) {
    const std::string name =
        fmt::format("{}_axis{}_{}_{}of{}{}{}", to_string(shape), axis, dtype, kept, shape[axis],
                    descending ? "_descending" : "", many ? "" : "_equals") +
        (strided ? "_strided" : "");
    cases.push_back(
        {name,
         [=](Inputs& in) {
           const bool positive = dtype == DType::u8 || dtype == DType::boolean;
           const Tensor x =
               many && is_floating(dtype)
                   ? in.normal(shape, dtype)
                   : in.integers(shape, dtype, positive ? 0 : -5, dtype == DType::boolean ? 1 : 5);
           Shape result = shape;
           result[axis] = kept;
           Problem p{.x = strided ? in.strided(x) : x, .axis = axis, .descending = descending};
           p.values = strided ? in.strided_output(result, dtype) : in.output(result, dtype);
           p.places =
               strided ? in.strided_output(result, DType::i64) : in.output(result, DType::i64);
           return p;
         },
         cost});
  };
  for (DType dtype : kAllDTypes) {
    for (bool descending : {false, true}) {
      add({3, 67}, 1, dtype, 67, descending, true);
      add({5, 9, 3}, 1, dtype, 9, descending, false, true);
      add({2, 33}, 1, dtype, 4, descending, false);
    }
  }
  for (int64_t n : {0, 1, 2, 31, 32, 33, 511, 512, 513, 1024, 1025, 3000}) {
    for (bool descending : {false, true}) add({2, n}, 1, DType::f32, n, descending, n % 2 == 1);
  }
  for (DType dtype : {DType::f64, DType::i64, DType::bf16}) {
    add({2100}, 0, dtype, 2100, true, true);
    add({2100}, 0, dtype, 100, false, false);
  }
  add({700, 2}, 0, DType::f32, 700, false, true);
  // Lines with more elements than there are values of the dtype, whole and in part.
  for (DType dtype : {DType::f8e4m3, DType::f8e5m2, DType::u8, DType::boolean}) {
    for (bool descending : {false, true}) {
      add({2, 700}, 1, dtype, 700, descending, true, descending);
      add({700, 2}, 0, dtype, 40, descending, false);
    }
  }
  for (DType dtype : {DType::f16, DType::bf16}) {
    add({(1 << 16) + 3}, 0, dtype, (1 << 16) + 3, dtype == DType::f16, true);
    cases.back().emulated_on = "cpu";  // where it is a long line as any other
  }
  add({4, 0}, 0, DType::f32, 4, false, true);
  add({3, 40}, 1, DType::f32, 0, false, true);
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8e5m2}) {
    for (bool descending : {false, true}) {
      cases.push_back(
          {fmt::format("special_{}{}", dtype, descending ? "_descending" : ""), [=](Inputs& in) {
             const Shape shape = {dtype == DType::f8e5m2 ? 700 : 13};
             return Problem{.x = in.values({1, nan, -0.0, inf, 0.0, -inf, nan, -1, 1e-7, -1e-7, inf,
                                            0.0, -0.0},
                                           shape, dtype),
                            .values = in.output(shape, dtype),
                            .places = in.output(shape, DType::i64),
                            .descending = descending};
           }});
    }
  }
  // The best five of a batch's class scores, and a long line.
  add({64, 1000}, 1, DType::f32, 5, true, true, false, {.bytes = 64.0 * 1000 * 4});
  add({64, 1000}, 1, DType::f32, 1000, false, true, false, {.bytes = 64.0 * 1000 * 16});
  add({1 << 20}, 0, DType::f32, 1 << 20, false, true, false, {.bytes = 16.0 * (1 << 20)});
  return make_table(sort_op(), std::move(cases), sort_reference);
}

}  // namespace weft::kernels
