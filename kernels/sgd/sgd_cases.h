// Lists of parameters that sgd is tested and timed on.
#pragma once

#include "kernels/multi_tensor/list_cases.h"
#include "kernels/sgd/sgd.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

/// `narrow`: of the copies that every second parameter has; f32: none has one.
inline SgdProblem sgd_case(Inputs& in, const std::vector<Shape>& shapes, DType dtype,
                           DType gradient, const SgdProblem& options, DType narrow = DType::f32) {
  SgdProblem s = options;
  for (const Shape& shape : shapes) {
    s.parameters.push_back(in.inout(in.uniform(shape, dtype, -1, 1)));
    if (s.momentum != 0) {
      // A first step must not read what the buffers hold: NaN.
      s.buffers.push_back(s.first_step ? in.output(shape, dtype)
                                       : in.inout(in.uniform(shape, dtype, -1, 1)));
    }
    s.gradients.push_back(in.uniform(shape, gradient, -1, 1));
    if (narrow == DType::f32) continue;
    const bool has_copy = s.parameters.size() % 2 == 1;
    s.narrow.push_back(has_copy ? in.inout(in.uniform(shape, narrow, -1, 1)) : Tensor());
  }
  return s;
}

inline OpTable sgd_table() {
  using Problem = SgdProblem;
  std::vector<Case<Problem>> cases;
  const auto add = [&](std::string name, std::vector<Shape> shapes, DType dtype, DType gradient,
                       Problem options, Cost cost = {}) {
    cases.push_back({fmt::format("{}_{}_{}", name, dtype, gradient),
                     [=](Inputs& in) { return sgd_case(in, shapes, dtype, gradient, options); },
                     cost});
  };
  const std::vector<Shape> shapes = {{},   {0},  {1},       {15},   {16},   {17},   {31},
                                     {32}, {33}, {3, 5, 7}, {1021}, {1024}, {1025}, {32769}};
  const std::pair<DType, DType> dtypes[] = {{DType::f64, DType::f64},   {DType::f32, DType::f32},
                                            {DType::f32, DType::bf16},  {DType::f32, DType::f16},
                                            {DType::bf16, DType::bf16}, {DType::bf16, DType::f32},
                                            {DType::f16, DType::f16},   {DType::f16, DType::f32}};
  for (auto [dtype, gradient] : dtypes) {
    add("plain", shapes, dtype, gradient, {.lr = 0.1});
    add("decayed_clipped", shapes, dtype, gradient,
        {.lr = 0.1, .weight_decay = 0.01, .gradient_scale = 0.37});
    add("momentum", shapes, dtype, gradient, {.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-4});
    add("dampened", shapes, dtype, gradient, {.lr = 0.1, .momentum = 0.9, .dampening = 0.3});
    add("nesterov", shapes, dtype, gradient, {.lr = 0.1, .momentum = 0.9, .nesterov = true});
    add("nesterov_first", shapes, dtype, gradient,
        {.momentum = 0.9, .weight_decay = 0.1, .nesterov = true, .first_step = true});
  }
  for (DType narrow : {DType::bf16, DType::f16}) {
    for (double momentum : {0.0, 0.9}) {
      cases.push_back({fmt::format("copied_{}_momentum_{}", narrow, momentum), [=](Inputs& in) {
                         return sgd_case(in, shapes, DType::f32, DType::f32,
                                         {.lr = 0.1, .momentum = momentum}, narrow);
                       }});
    }
    for (double skip : {0.0, 1.0}) {
      cases.push_back(
          {fmt::format("copied_{}_skip_{}", narrow, skip), [=](Inputs& in) {
             Problem s = sgd_case(in, {{37, 41}, {5}, {4}}, DType::f32, DType::f32, {}, narrow);
             s.gate.skip = in.values({skip}, {}, DType::f32);
             return s;
           }});
    }
  }
  // Layers at rates of their own; of some parameters norms are 0.
  for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (double norm : {0.0, 20.0}) {
      cases.push_back(
          {fmt::format("layers_{}_norm_{}", dtype, norm), [=](Inputs& in) {
             Problem s = sgd_case(in, shapes, dtype, dtype,
                                  {.momentum = 0.9,
                                   .weight_decay = 0.1,
                                   .gradient_scale = 0.7,
                                   .trust_coefficient = 0.02});
             const auto n = static_cast<int64_t>(shapes.size());
             s.layer_norms = in.values({3, 0.25, 0, 2, 7.5, 1.5, 4, 0, 0.5}, {2, n}, DType::f64);
             if (norm == 0) return s;
             s.gate.norm = in.values({norm}, {}, DType::f64);
             s.gate.max_norm = 5;
             return s;
           }});
    }
  }
  // Clipped by a norm that the host does not know, or left out.
  for (double norm : {2.0, 20.0, static_cast<double>(INFINITY)}) {
    for (double skip : {0.0, 1.0}) {
      cases.push_back({fmt::format("norm_{}_skip_{}", norm, skip), [=](Inputs& in) {
                         Problem s = sgd_case(in, {{37, 41}, {5}}, DType::f32, DType::f32,
                                              {.momentum = 0.9, .gradient_scale = 0.7});
                         s.gate.skip = in.values({skip}, {}, DType::f32);
                         s.gate.norm = in.values({norm}, {}, DType::f64);
                         s.gate.max_norm = 5;
                         s.gate.needs_finite = true;
                         return s;
                       }});
    }
  }
  cases.push_back({"empty", [](Inputs&) { return Problem{}; }});
  // Parameters of one 16-bit format, gradients of the other.
  add("momentum", {{37, 41}, {5}}, DType::bf16, DType::f16, {.lr = 0.1, .momentum = 0.9});
  add("momentum", {{37, 41}, {5}}, DType::f16, DType::bf16, {.lr = 0.1, .momentum = 0.9});
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    // More tensors than one CUDA launch takes.
    add("many", std::vector<Shape>(1000, Shape{3}), dtype, dtype, {.momentum = 0.9});
    cases.push_back({fmt::format("strided_gradient_{}", dtype), [=](Inputs& in) {
                       Problem s = sgd_case(in, {{37, 41}, {5}}, dtype, dtype, {});
                       for (Tensor& g : s.gradients) g = in.strided(g);
                       return s;
                     }});
    cases.push_back({fmt::format("misaligned_gradient_{}", dtype), [=](Inputs& in) {
                       Problem s = sgd_case(in, {{4100}}, dtype, dtype, {.momentum = 0.9});
                       s.gradients[0] = without_first(in.uniform({4101}, dtype, -1, 1));
                       return s;
                     }});
  }
  // Steps of 1 from even numbers, where the 16-bit numbers are 2 apart; f16's largest number, half
  // of its distance to the next; and the smallest subnormals.
  for (DType dtype : {DType::bf16, DType::f16}) {
    cases.push_back({fmt::format("ties_{}", dtype), [=](Inputs& in) {
                       const double base = dtype == DType::bf16 ? 256 : 2048;
                       const double least = dtype == DType::bf16 ? 0x1p-133 : 0x1p-24;
                       const auto list = [&](const std::vector<double>& values, int64_t times) {
                         return in.values(values, {times}, dtype);
                       };
                       return Problem{
                           .parameters = {in.inout(list({base, base + 2, base + 4, base + 6}, 35)),
                                          in.inout(list({65504, -65504}, 4)),
                                          in.inout(list({0, least, 2 * least, -least}, 36))},
                           .gradients = {list({2, -2, -2}, 35), list({-32, 32, 31.5}, 4),
                                         list({least, -least, 3 * least}, 36)},
                           .lr = 0.5};
                     }});
    cases.push_back({fmt::format("special_{}", dtype), [=](Inputs& in) {
                       Problem s = sgd_case(in, {{5}}, dtype, dtype, {.momentum = 0.9});
                       s.gradients[0] = in.values({0, INFINITY, NAN, 6e-8, 65504}, {5}, dtype);
                       return s;
                     }});
  }
  cases.push_back({"special", [](Inputs& in) {
                     Problem s = sgd_case(in, {{5}}, DType::f32, DType::f32, {.momentum = 0.9});
                     s.gradients[0] = in.values({0, INFINITY, NAN, 1e-40, 1e38}, {5}, DType::f32);
                     return s;
                   }});
  // Matrices and vectors of a block of ViT-B/16.
  for (DType gradient : {DType::f32, DType::bf16}) {
    const double elements = 3072.0 * 768 + 3072 + 768;
    add("mlp", {{3072, 768}, {3072}, {768}}, DType::f32, gradient,
        {.momentum = 0.9, .weight_decay = 1e-4},
        {.flops = 7 * elements,
         .bytes = (16.0 + static_cast<double>(itemsize(gradient))) * elements});
  }
  const double elements = 3072.0 * 768 + 3072 + 768;
  add("mlp", {{3072, 768}, {3072}, {768}}, DType::bf16, DType::bf16,
      {.momentum = 0.9, .weight_decay = 1e-4}, {.flops = 7 * elements, .bytes = 10 * elements});
  return make_table(sgd_op(), std::move(cases), sgd_reference);
}

}  // namespace weft::kernels
