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
  struct Outputs {
    bool found_inf = true;
    DType norm = DType::f64;  // boolean: none
  };
  // `odd`: one value of the last tensor but one that is not finite, or 0 for none.
  const auto add = [&](std::string name, std::vector<Shape> list, DType dtype, double factor,
                       double odd, Outputs outputs = {}, Cost cost = {}) {
    cases.push_back({fmt::format("{}_{}", name, dtype),
                     [=](Inputs& in) {
                       Problem p{.tensors = inout_list(in, list, dtype, odd), .factor = factor};
                       if (outputs.found_inf) p.found_inf = in.output({}, DType::f32);
                       if (outputs.norm != DType::boolean) p.norm = in.output({}, outputs.norm);
                       return p;
                     },
                     cost});
  };
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    add("finite", shapes, dtype, 1.0 / 1024, 0);
    add("odd_factor", shapes, dtype, 0.37, 0, {.norm = DType::f32});
    add("infinity", shapes, dtype, 0.5, -INFINITY);
    add("nan", shapes, dtype, 0.5, NAN);
    add("check_alone", shapes, dtype, 1, INFINITY, {.norm = DType::boolean});
    add("factor_one", shapes, dtype, 1, 0);
    add("unscale_alone", shapes, dtype, 0.25, 0, {false, DType::boolean});
    for (const Shape& shape : shapes) add(to_string(shape), {shape}, dtype, 0.125, 0);
  }
  // More tensors than one CUDA launch takes.
  add("many", std::vector<Shape>(1000, Shape{3}), DType::f32, 0.5, 0);
  // A factor in memory; 1 leaves the tensors alone.
  for (double factor : {1.0, 0.37, 1.0 / 1024}) {
    cases.push_back({fmt::format("from_memory_{}", factor), [=](Inputs& in) {
                       return Problem{.tensors = {in.inout(in.normal({1025}, DType::f32)),
                                                  in.inout(in.normal({40}, DType::bf16))},
                                      .factor = 9,
                                      .factor_from = in.values({factor}, {}, DType::f32),
                                      .found_inf = in.output({}, DType::f32),
                                      .norm = in.output({}, DType::f64)};
                     }});
  }
  cases.push_back({"empty", [](Inputs& in) {
                     return Problem{.found_inf = in.output({}, DType::f32),
                                    .norm = in.output({}, DType::f64)};
                   }});
  cases.push_back({"mixed", [](Inputs& in) {
                     return Problem{.tensors = {in.inout(in.normal({40}, DType::f32)),
                                                in.inout(in.normal({40}, DType::bf16))},
                                    .factor = 3,
                                    .norm = in.output({}, DType::f64)};
                   }});
  // The check sees the gradients as they came: these become finite, or leave the range, only after.
  cases.push_back({"overflows_after", [](Inputs& in) {
                     return Problem{.tensors = {in.inout(in.values({3e38}, {3}, DType::f32))},
                                    .factor = 4,
                                    .found_inf = in.output({}, DType::f32),
                                    .norm = in.output({}, DType::f64)};
                   }});
  // 3^2 + 4^2 = 5^2, on squares beyond the range of f32.
  cases.push_back({"pythagoras", [](Inputs& in) {
                     return Problem{.tensors = {in.inout(in.values({6e30, 8e30}, {2}, DType::f32))},
                                    .factor = 0.5,
                                    .found_inf = in.output({}, DType::f32),
                                    .norm = in.output({}, DType::f32)};
                   }});
  const double elements = 3072.0 * 768;
  for (DType dtype : {DType::f32, DType::bf16}) {
    add("mlp", {{3072, 768}, {3072}, {768}}, dtype, 1.0 / 65536, 0, {},
        {.flops = 3 * elements, .bytes = 2.0 * elements * static_cast<double>(itemsize(dtype))});
  }
  return make_table(multi_tensor_scale_op(), std::move(cases), multi_tensor_scale_reference);
}

}  // namespace weft::kernels
