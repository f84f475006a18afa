// Sizes that cube is tested and timed on.
#pragma once

#include "kernels/cube/cube.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

inline OpTable cube_table() {
  std::vector<Case<CubeProblem>> cases;
  for (DType dtype : {DType::f32, DType::f64}) {
    for (int64_t n : {0, 1, 31, 32, 33, 5003}) {
      cases.push_back({fmt::format("{}_{}", n, dtype), [=](Inputs& in) {
                         return CubeProblem{in.normal({n}, dtype), in.output({n}, dtype)};
                       }});
    }
  }
  cases.push_back(
      {"1000000_f32",
       [](Inputs& in) {
         return CubeProblem{in.normal({1000000}, DType::f32), in.output({1000000}, DType::f32)};
       },
       {.flops = 2e6, .bytes = 8e6}});
  return make_table(cube_op(), std::move(cases), cube_reference);
}

}  // namespace weft::kernels
