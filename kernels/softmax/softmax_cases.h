// Shapes and dtypes that softmax is tested and timed on.
#pragma once

#include "kernels/softmax/softmax.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

inline OpTable softmax_table() {
  using Problem = SoftmaxProblem;
  std::vector<Case<Problem>> cases;
  const auto add = [&](Shape shape, int axis, DType dtype, bool log, bool backward, bool strided,
                       Cost cost = {}) {
    std::string name =
        fmt::format("{}_axis{}_{}{}{}{}", to_string(shape), axis, dtype, log ? "_log" : "",
                    backward ? "_backward" : "", strided ? "_strided" : "");
    cases.push_back({name,
                     [=](Inputs& in) {
                       const auto layout = [&](Tensor t) { return strided ? in.strided(t) : t; };
                       const auto output = [&] {
                         return strided ? in.strided_output(shape, dtype) : in.output(shape, dtype);
                       };
                       Problem p{.axis = axis, .log = log};
                       (backward ? p.dy : p.x) = layout(in.normal(shape, dtype, 3));
                       if (backward) {
                         p.y = layout(log ? in.uniform(shape, dtype, -6, -1)
                                          : in.uniform(shape, dtype, 0, 0.5));
                         p.dx = output();
                       } else {
                         p.y = output();
                       }
                       return p;
                     },
                     cost});
  };
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (bool log : {false, true}) {
      for (bool backward : {false, true}) {
        for (int64_t n : {0, 1, 15, 16, 17, 31, 32, 33, 197}) {
          add({5, n}, 1, dtype, log, backward, false);
        }
        // Beyond what registers hold: in vectors, and from any place.
        for (int64_t n : {1027, 3080, 4099}) add({3, n}, 1, dtype, log, backward, false);
        add({3, 7, 5}, 1, dtype, log, backward, false);
        add({4, 3, 37}, -1, dtype, log, backward, true);
        add({11, 3}, 0, dtype, log, backward, true);
      }
    }
  }
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (bool backward : {false, true}) {
      const double elements = 48.0 * 197 * 197;
      add({48, 197, 197}, 2, dtype, false, backward, false,
          {.flops = 4 * elements, .bytes = (backward ? 3 : 2) * elements * itemsize(dtype)});
    }
  }
  // Special values: a row of equal infinities is NaN, one -inf among finite values is 0.
  cases.push_back(
      {"special_f32", [](Inputs& in) {
         Tensor x = in.values({-INFINITY, 0, 1, 88, 1000, 1000, 1000, 1000}, {2, 4}, DType::f32);
         return Problem{.x = x, .y = in.output({2, 4}, DType::f32), .axis = 1};
       }});
  // A NaN makes its row NaN and no other.
  for (bool log : {false, true}) {
    cases.push_back(
        {log ? "nan_log_f32" : "nan_f32", [=](Inputs& in) {
           Tensor x = in.normal({3, 20}, DType::f32);
           x.data<float>()[23] = NAN;
           return Problem{.x = x, .y = in.output({3, 20}, DType::f32), .axis = 1, .log = log};
         }});
  }
  return make_table(softmax_op(), std::move(cases), softmax_reference);
}

}  // namespace weft::kernels
