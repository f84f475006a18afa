// Lists of parameters that adam is tested and timed on.
#pragma once

#include "kernels/adam/adam.h"
#include "kernels/multi_tensor/list_cases.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

/// `narrow`: of the copies that every second parameter has; f32: none has one.
inline AdamProblem adam_case(Inputs& in, const std::vector<Shape>& shapes, DType dtype,
                             DType gradient, const AdamProblem& options,
                             DType narrow = DType::f32) {
  AdamProblem a = options;
  for (const Shape& shape : shapes) {
    a.parameters.push_back(in.inout(in.uniform(shape, dtype, -1, 1)));
    a.m.push_back(in.inout(in.uniform(shape, dtype, -1e-2, 1e-2)));
    a.v.push_back(in.inout(in.uniform(shape, dtype, 0, 1e-3)));
    a.gradients.push_back(in.uniform(shape, gradient, -0.1, 0.1));
    if (narrow == DType::f32) continue;
    const bool has_copy = a.parameters.size() % 2 == 1;
    a.narrow.push_back(has_copy ? in.inout(in.uniform(shape, narrow, -1, 1)) : Tensor());
  }
  return a;
}

inline OpTable adam_table() {
  using Problem = AdamProblem;
  std::vector<Case<Problem>> cases;
  const auto add = [&](std::string name, std::vector<Shape> shapes, DType dtype, DType gradient,
                       Problem options, Cost cost = {}) {
    cases.push_back({fmt::format("{}_{}_{}", name, dtype, gradient),
                     [=](Inputs& in) { return adam_case(in, shapes, dtype, gradient, options); },
                     cost});
  };
  const std::vector<Shape> shapes = {{},     {0},    {1},    {15},       {16},
                                     {17},   {31},   {32},   {33},       {3, 5, 7},
                                     {1021}, {1024}, {1025}, {3, 32768}, {32769}};
  const std::pair<DType, DType> dtypes[] = {{DType::f64, DType::f64},   {DType::f32, DType::f32},
                                            {DType::f32, DType::bf16},  {DType::f32, DType::f16},
                                            {DType::bf16, DType::bf16}, {DType::bf16, DType::f32},
                                            {DType::f16, DType::f16},   {DType::f16, DType::f32}};
  for (auto [dtype, gradient] : dtypes) {
    add("adamw", shapes, dtype, gradient, {.step = 3, .weight_decay = 0.05});
    add("adamw_first", shapes, dtype, gradient, {.step = 1, .lr = 0.1, .beta2 = 0.98});
    add("adamw_clipped", shapes, dtype, gradient,
        {.step = 1000, .weight_decay = 0.3, .gradient_scale = 0.37});
    add("adam", shapes, dtype, gradient, {.step = 7, .weight_decay = 0.1, .decoupled = false});
    add("adam_small_beta1", shapes, dtype, gradient,
        {.step = 7, .beta1 = 0.5, .eps = 1e-3, .decoupled = false});
  }
  for (DType narrow : {DType::bf16, DType::f16}) {
    for (DType gradient : {DType::f32, narrow}) {
      cases.push_back({fmt::format("copied_{}_{}", narrow, gradient), [=](Inputs& in) {
                         return adam_case(in, shapes, DType::f32, gradient,
                                          {.step = 3, .lr = 0.1, .weight_decay = 0.05}, narrow);
                       }});
    }
    for (double skip : {0.0, 1.0}) {
      cases.push_back(
          {fmt::format("copied_{}_skip_{}", narrow, skip), [=](Inputs& in) {
             Problem a = adam_case(in, {{37, 41}, {5}, {4}}, DType::f32, DType::f32, {}, narrow);
             a.gate.skip = in.values({skip}, {}, DType::f32);
             return a;
           }});
    }
    // Weights that round to an infinity, to even and to subnormals.
    cases.push_back(
        {fmt::format("copied_{}_special", narrow), [=](Inputs& in) {
           const Tensor p = in.inout(in.values(
               {65520, 3.4e38, 1.00390625, 1.01171875, 1e-40, 6e-8, NAN, -0.0}, {8}, DType::f32));
           const Tensor zero = in.values({0}, {8}, DType::f32);
           Problem a{.parameters = {p}, .gradients = {zero}, .lr = 0};
           a.m = {in.inout(zero)}, a.v = {in.inout(zero)};
           a.narrow = {in.inout(in.values({7}, {8}, narrow))};
           return a;
         }});
  }
  // Parameters of one 16-bit format, gradients of the other.
  add("adamw", {{37, 41}, {5}}, DType::bf16, DType::f16, {.step = 3, .weight_decay = 0.05});
  add("adamw", {{37, 41}, {5}}, DType::f16, DType::bf16, {.step = 3, .weight_decay = 0.05});
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    // More tensors than one CUDA launch takes.
    add("many", std::vector<Shape>(1000, Shape{3}), dtype, dtype, {});
    for (double skip : {0.0, 1.0}) {
      cases.push_back(
          {fmt::format("{}_{}", skip == 0 ? "not_skipped" : "skipped", dtype), [=](Inputs& in) {
             Problem a = adam_case(in, {{37, 41}, {5}}, dtype, dtype, {});
             a.gate.skip = in.values({skip}, {}, DType::f32);
             return a;
           }});
    }
    cases.push_back({fmt::format("strided_gradient_{}", dtype), [=](Inputs& in) {
                       Problem a = adam_case(in, {{37, 41}, {5}}, dtype, dtype, {});
                       for (Tensor& g : a.gradients) g = in.strided(g);
                       return a;
                     }});
    cases.push_back({fmt::format("misaligned_gradient_{}", dtype), [=](Inputs& in) {
                       Problem a = adam_case(in, {{4100}}, dtype, dtype, {});
                       a.gradients[0] = without_first(in.uniform({4101}, dtype, -0.1, 0.1));
                       return a;
                     }});
  }
  // Three quarters of a 16-bit number lie in the middle of two others as often as not, subnormals
  // too; a zero gradient leaves it at that.
  for (DType dtype : {DType::bf16, DType::f16}) {
    cases.push_back({fmt::format("ties_{}", dtype), [=](Inputs& in) {
                       const double least = dtype == DType::bf16 ? 0x1p-133 : 0x1p-24;
                       const Tensor zero = in.values({0}, {67}, dtype);
                       Problem a{.lr = 0.5, .weight_decay = 0.5};
                       for (const Tensor& p :
                            {in.uniform({67}, dtype, -1, 1),
                             in.values({least, 2 * least, 3 * least, -5 * least}, {67}, dtype)}) {
                         a.parameters.push_back(in.inout(p));
                         a.m.push_back(in.inout(zero));
                         a.v.push_back(in.inout(zero));
                         a.gradients.push_back(zero);
                       }
                       return a;
                     }});
    // A moment that leaves the range of f16 has been used in f32.
    cases.push_back({fmt::format("special_{}", dtype), [=](Inputs& in) {
                       Problem a = adam_case(in, {{8}}, dtype, dtype, {});
                       a.gradients[0] = in.values(
                           {0, INFINITY, NAN, 6e-8, 65504, -0.0, -300, 1e-30}, {8}, dtype);
                       return a;
                     }});
  }
  // Clipped by a norm that the host does not know; above 5 the limit does nothing.
  for (double norm : {2.0, 20.0, static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    for (bool needs_finite : {false, true}) {
      cases.push_back({fmt::format("norm_{}_{}", norm, needs_finite), [=](Inputs& in) {
                         Problem a = adam_case(in, {{37, 41}, {5}}, DType::f32, DType::f32,
                                               {.gradient_scale = 0.7});
                         a.gate.norm = in.values({norm}, {}, DType::f64);
                         a.gate.max_norm = 5;
                         a.gate.needs_finite = needs_finite;
                         return a;
                       }});
    }
  }
  cases.push_back({"empty", [](Inputs&) { return Problem{}; }});
  // A zero gradient, an infinity, a NaN, subnormal and huge squares.
  cases.push_back(
      {"special", [](Inputs& in) {
         Problem a = adam_case(in, {{6}}, DType::f32, DType::f32, {});
         a.v[0].data<float>()[0] = 0;
         a.gradients[0] = in.values({0, INFINITY, NAN, 1e-30, 1e30, -0.0}, {6}, DType::f32);
         return a;
       }});
  // Matrices and vectors of a block of ViT-B/16.
  for (DType gradient : {DType::f32, DType::bf16}) {
    const double elements = 3072.0 * 768 + 3072 + 768;
    add("mlp", {{3072, 768}, {3072}, {768}}, DType::f32, gradient, {.weight_decay = 0.05},
        {.flops = 14 * elements,
         .bytes = (24.0 + static_cast<double>(itemsize(gradient))) * elements});
  }
  const double elements = 3072.0 * 768 + 3072 + 768;
  add("mlp", {{3072, 768}, {3072}, {768}}, DType::bf16, DType::bf16, {.weight_decay = 0.05},
      {.flops = 14 * elements, .bytes = 14 * elements});
  return make_table(adam_op(), std::move(cases), adam_reference);
}

}  // namespace weft::kernels
