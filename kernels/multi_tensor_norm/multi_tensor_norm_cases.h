// Lists of tensors that multi_tensor_norm is tested and timed on.
#pragma once

#include "kernels/multi_tensor_norm/multi_tensor_norm.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

inline OpTable multi_tensor_norm_table() {
  using Problem = MultiTensorNormProblem;
  std::vector<Case<Problem>> cases;
  const std::vector<Shape> shapes = {{},     {0},    {1},    {15},       {16},
                                     {17},   {31},   {32},   {33},       {3, 5, 7},
                                     {1021}, {1024}, {1025}, {2, 32768}, {32769}};
  const auto add = [&](std::string name, std::vector<Shape> list, DType dtype, Cost cost = {}) {
    cases.push_back({fmt::format("{}_{}", name, dtype),
                     [=](Inputs& in) {
                       Problem p;
                       for (const Shape& shape : list) {
                         p.tensors.push_back(in.uniform(shape, dtype, -1, 1));
                       }
                       p.norm = in.output({}, dtype == DType::f64 ? DType::f64 : DType::f32);
                       return p;
                     },
                     cost});
  };
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    add("list", shapes, dtype);
    for (const Shape& shape : shapes) add(to_string(shape), {shape}, dtype);
    cases.push_back({fmt::format("each_{}", dtype), [=](Inputs& in) {
                       Problem p;
                       for (const Shape& shape : shapes) {
                         p.tensors.push_back(in.uniform(shape, dtype, -1, 1));
                       }
                       p.norm = in.output({std::ssize(shapes)}, DType::f64);
                       return p;
                     }});
    // 3^2 + 4^2 = 5^2; squares beyond the range of f16 but not of f32.
    cases.push_back({fmt::format("pythagoras_{}", dtype), [=](Inputs& in) {
                       return Problem{.tensors = {in.values({3e4}, {}, dtype),
                                                  in.strided(in.values({4e4, 0, 0}, {3}, dtype))},
                                      .norm = in.output({}, DType::f64)};
                     }});
  }
  cases.push_back({"empty", [](Inputs& in) { return Problem{.norm = in.output({}, DType::f32)}; }});
  cases.push_back({"many_each", [](Inputs& in) {
                     Problem p;  // more tensors than one CUDA launch takes
                     for (int i = 0; i < 1000; ++i) p.tensors.push_back(in.normal({3}, DType::f32));
                     p.norm = in.output({1000}, DType::f64);
                     return p;
                   }});
  cases.push_back({"huge_f32", [](Inputs& in) {
                     return Problem{.tensors = {in.values({3e30, 4e30}, {2}, DType::f32)},
                                    .norm = in.output({}, DType::f32)};
                   }});
  for (double odd : {static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    cases.push_back({fmt::format("special_{}", odd), [=](Inputs& in) {
                       return Problem{.tensors = {in.normal({100}, DType::bf16),
                                                  in.values({1, odd, 2}, {50}, DType::f32)},
                                      .norm = in.output({}, DType::f32)};
                     }});
  }
  const double elements = 3072.0 * 768;
  for (DType dtype : {DType::f32, DType::bf16}) {
    add("mlp", {{3072, 768}, {3072}, {768}}, dtype,
        {.flops = 2 * elements, .bytes = elements * static_cast<double>(itemsize(dtype))});
  }
  return make_table(multi_tensor_norm_op(), std::move(cases), multi_tensor_norm_reference);
}

}  // namespace weft::kernels
