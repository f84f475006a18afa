// Shapes and dtypes that scan is tested and timed on.
#pragma once

#include "kernels/scan/scan.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

inline OpTable scan_table() {
  using Problem = ScanProblem;
  std::vector<Case<Problem>> cases;
  const auto add = [&](Shape shape, int axis, DType dtype, bool reverse, bool strided = false,
                       Cost cost = {}) {
    const std::string name = fmt::format("{}_axis{}_{}{}{}", to_string(shape), axis, dtype,
                                         reverse ? "_reverse" : "", strided ? "_strided" : "");
    cases.push_back(
        {name,
         [=](Inputs& in) {
           const bool positive = dtype == DType::u8 || dtype == DType::boolean;
           const Tensor x = is_floating(dtype) ? in.normal(shape, dtype)
                                               : in.integers(shape, dtype, positive ? 0 : -5,
                                                             dtype == DType::boolean ? 1 : 5);
           const DType out = is_floating(dtype) ? dtype : DType::i64;
           return Problem{.x = strided ? in.strided(x) : x,
                          .y = strided ? in.strided_output(shape, out) : in.output(shape, out),
                          .axis = axis,
                          .reverse = reverse};
         },
         cost});
  };
  for (DType dtype : kAllDTypes) {
    for (bool reverse : {false, true}) {
      add({3, 67}, 1, dtype, reverse);
      add({5, 9, 3}, 1, dtype, reverse, true);
    }
  }
  for (int64_t n : {0, 1, 15, 16, 17, 31, 32, 33, 255, 256, 257, 1000}) {
    add({3, n}, 1, DType::f32, false);
    add({n, 3}, 0, DType::f32, true);
  }
  add({4, 0}, 0, DType::f32, false);
  cases.push_back({"special_f32", [](Inputs& in) {
                     return Problem{.x = in.values({1, INFINITY, -INFINITY, 2, 1, NAN, 3, 4},
                                                   {2, 4}, DType::f32),
                                    .y = in.output({2, 4}, DType::f32),
                                    .axis = 1};
                   }});
  for (DType dtype : {DType::f32, DType::bf16}) {
    add({788, 768}, 1, dtype, false, false,
        {.flops = 788.0 * 768, .bytes = 2.0 * 788 * 768 * itemsize(dtype)});
  }
  add({788, 768}, 0, DType::f32, false, false,
      {.flops = 788.0 * 768, .bytes = 2.0 * 788 * 768 * 4});
  return make_table(scan_op(), std::move(cases), scan_reference);
}

}  // namespace weft::kernels
