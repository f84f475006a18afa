// Tensors that fp8_quantize is tested and timed on.
#pragma once

#include <cmath>

#include "kernels/fp8_quantize/fp8_quantize.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

inline OpTable fp8_quantize_table() {
  using Problem = Fp8QuantizeProblem;
  std::vector<Case<Problem>> cases;
  const auto add = [&](std::string name, Shape shape, DType dtype, DType format, double scale,
                       bool strided = false, Cost cost = {}) {
    cases.push_back({fmt::format("{}_{}_{}_{}", name, to_string(shape), dtype, format),
                     [=](Inputs& in) {
                       const Tensor x = in.normal(shape, dtype, 3);
                       return Problem{.x = strided ? in.strided(x) : x,
                                      .y = in.output(shape, format),
                                      .amax = in.output({}, DType::f32),
                                      .scale = scale};
                     },
                     cost});
  };
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (DType format : {DType::f8e4m3, DType::f8e5m2}) {
      for (int64_t n : {0, 1, 15, 16, 17, 31, 32, 33, 1021, 1024, 1025, 40000}) {
        add("scaled", {n}, dtype, format, 29.7);
      }
      add("scalar", {}, dtype, format, 1);
      add("matrix", {37, 53}, dtype, format, 0.5, true);
      // Into the subnormals, and beyond the range.
      add("small", {4096}, dtype, format, format == DType::f8e4m3 ? 0x1p-9 : 0x1p-16);
      add("large", {4096}, dtype, format, format == DType::f8e4m3 ? 100.0 : 30000.0);
      cases.push_back({fmt::format("special_{}_{}", dtype, format), [=](Inputs& in) {
                         return Problem{.x = in.values({0, -0.0, INFINITY, -INFINITY, NAN, 448, 464,
                                                        57344, 61440, 0x1p-10, 0x1p-9, 0x1p-17,
                                                        1.5 * 0x1p-17, -0.0625, 17, 19},
                                                       {48}, dtype),
                                        .y = in.output({48}, format),
                                        .amax = in.output({}, DType::f32)};
                       }});
    }
    cases.push_back({fmt::format("amax_alone_{}", dtype), [=](Inputs& in) {
                       return Problem{.x = in.strided(in.normal({300, 200}, dtype)),
                                      .amax = in.output({}, DType::f32)};
                     }});
    cases.push_back({fmt::format("codes_alone_{}", dtype), [=](Inputs& in) {
                       return Problem{.x = in.normal({300}, dtype),
                                      .y = in.output({300}, DType::f8e5m2),
                                      .scale = 7};
                     }});
  }
  const double elements = 4160.0 * 128;
  for (DType dtype : {DType::f32, DType::bf16}) {
    add("timed", {4160, 128}, dtype, DType::f8e4m3, 29.7, false,
        {.flops = elements, .bytes = elements * (1.0 + static_cast<double>(itemsize(dtype)))});
  }
  return make_table(fp8_quantize_op(), std::move(cases), fp8_quantize_reference);
}

}  // namespace weft::kernels
