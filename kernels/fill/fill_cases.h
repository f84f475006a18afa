// Shapes, dtypes and values that fill is tested and timed on.
#pragma once

#include <limits>

#include "core/view.h"
#include "kernels/fill/fill.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

inline OpTable fill_table() {
  using Problem = FillProblem;
  std::vector<Case<Problem>> cases;
  const double inf = std::numeric_limits<double>::infinity();
  for (DType dtype : kAllDTypes) {
    for (double value : {0.0, -0.0, 0.3, -2.7, 300.0, 1e300, inf, std::nan("")}) {
      for (int64_t n : {0, 1, 33, 5003}) {
        cases.push_back({fmt::format("{}_{}_{}", value, dtype, n), [=](Inputs& in) {
                           return Problem{in.output({n}, dtype), value};
                         }});
      }
    }
    cases.push_back({fmt::format("strided_{}", dtype), [=](Inputs& in) {
                       return Problem{in.strided_output({7, 3, 33}, dtype), 2};
                     }});
    cases.push_back({fmt::format("transposed_{}", dtype), [=](Inputs& in) {
                       return Problem{view::transpose(in.output({70, 33}, dtype), 0, 1), 2};
                     }});
  }
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Shape weight = {3072, 768};
    cases.push_back({fmt::format("weight_{}", dtype),
                     [=](Inputs& in) {
                       return Problem{in.output(weight, dtype), 0.5};
                     },
                     {.flops = 0, .bytes = static_cast<double>(numel(weight) * itemsize(dtype))}});
  }
  return make_table(fill_op(), std::move(cases), fill_reference);
}

}  // namespace weft::kernels
