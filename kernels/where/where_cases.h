// Shapes and dtypes that where is tested and timed on.
#pragma once

#include <limits>

#include "core/view.h"
#include "kernels/testing/op_table.h"
#include "kernels/where/where.h"

namespace weft::kernels {

inline OpTable where_table() {
  using Problem = WhereProblem;
  std::vector<Case<Problem>> cases;
  const auto condition = [](Inputs& in, const Shape& shape) {
    return in.integers(shape, DType::boolean, 0, 1);
  };
  for (DType dtype : kAllDTypes) {
    const auto numbers = [=](Inputs& in, const Shape& shape) {
      return is_floating(dtype) ? in.normal(shape, dtype) : in.integers(shape, dtype, 0, 1);
    };
    for (int64_t n : {0, 1, 31, 32, 33, 1057}) {
      cases.push_back({fmt::format("{}_{}", n, dtype), [=](Inputs& in) {
                         return Problem{condition(in, {n}), numbers(in, {n}), numbers(in, {n}),
                                        in.output({n}, dtype)};
                       }});
    }
    cases.push_back({fmt::format("broadcast_{}", dtype), [=](Inputs& in) {
                       const Shape shape = {5, 7, 33};
                       return Problem{view::expand(condition(in, {7, 1}), shape),
                                      view::expand(in.strided(numbers(in, {5, 1, 33})), shape),
                                      view::expand(numbers(in, {}), shape),
                                      in.strided_output(shape, dtype)};
                     }});
  }
  cases.push_back({"special_f32", [](Inputs& in) {
                     const double inf = std::numeric_limits<double>::infinity();
                     return Problem{in.values({1, 0}, {6}, DType::boolean),
                                    in.values({std::nan(""), inf, -0.0}, {6}, DType::f32),
                                    in.values({-inf, std::nan("")}, {6}, DType::f32),
                                    in.output({6}, DType::f32)};
                   }});
  cases.push_back({"in_place_bf16", [=](Inputs& in) {
                     const Tensor a = in.inout(in.normal({2057}, DType::bf16));
                     return Problem{condition(in, {2057}), a, in.normal({2057}, DType::bf16), a};
                   }});
  // A mask on the attention scores of ViT-B/16.
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Shape shape = {12, 197, 197};
    const double elements = static_cast<double>(numel(shape));
    cases.push_back({fmt::format("mask_{}", dtype),
                     [=](Inputs& in) {
                       return Problem{view::expand(condition(in, {197, 197}), shape),
                                      in.integers(shape, dtype),
                                      view::expand(in.values({-1e9}, {}, dtype), shape),
                                      in.output(shape, dtype)};
                     },
                     {.flops = 0, .bytes = 2 * elements * itemsize(dtype)}});
  }
  return make_table(where_op(), std::move(cases), where_reference);
}

}  // namespace weft::kernels
