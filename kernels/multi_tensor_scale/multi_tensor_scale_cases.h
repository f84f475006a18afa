// Lists of tensors that multi_tensor_scale is tested and timed on.
#pragma once

#include "kernels/multi_tensor/list_cases.h"
#include "kernels/multi_tensor_scale/multi_tensor_scale.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

inline OpTable multi_tensor_scale_table() {
  using Problem = MultiTensorScaleProblem;
  std::vector<Case<Problem>> cases;
  const std::vector<Shape> shapes = list_shapes();
  // One value of one tensor that is not finite, or none.
  const auto add = [&](std::string name, std::vector<Shape> list, DType dtype, double factor,
                       double odd, bool flag, Cost cost = {}) {
    cases.push_back({fmt::format("{}_{}", name, dtype),
                     [=](Inputs& in) {
                       Problem p{.tensors = inout_list(in, list, dtype, odd), .factor = factor};
                       if (flag) p.nonfinite = in.output({}, DType::boolean);
                       return p;
                     },
                     cost});
  };
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    add("plain", shapes, dtype, 0.37, 0, false);
    add("finite", shapes, dtype, 1.0 / 1024, 0, true);
    add("infinity", shapes, dtype, 0.5, -INFINITY, true);
    add("nan", shapes, dtype, 0.5, NAN, true);
    add("check_alone", shapes, dtype, 1, INFINITY, true);
    add("check_alone_finite", shapes, dtype, 1, 0, true);
  }
  cases.push_back(
      {"empty", [](Inputs& in) { return Problem{.nonfinite = in.output({}, DType::boolean)}; }});
  cases.push_back({"mixed", [](Inputs& in) {
                     return Problem{.tensors = {in.inout(in.normal({40}, DType::f32)),
                                                in.inout(in.normal({40}, DType::bf16))},
                                    .factor = 3};
                   }});
  const double elements = 3072.0 * 768;
  for (DType dtype : {DType::f32, DType::bf16}) {
    add("mlp", {{3072, 768}, {3072}, {768}}, dtype, 0.999, 0, true,
        {.flops = elements, .bytes = 2.0 * elements * static_cast<double>(itemsize(dtype))});
  }
  return make_table(multi_tensor_scale_op(), std::move(cases), multi_tensor_scale_reference);
}

}  // namespace weft::kernels
