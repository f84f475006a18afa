// Shapes, dtypes and probabilities that dropout is tested and timed on.
#pragma once

#include "kernels/dropout/dropout.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

inline OpTable dropout_table() {
  std::vector<Case<DropoutProblem>> cases;
  const auto add = [&](Shape shape, DType dtype, double p, uint64_t offset, bool strided,
                       Cost cost = {}, bool moves = false) {
    cases.push_back({fmt::format("{}_{}_p{}_offset{}{}{}", shape, dtype, p, offset,
                                 strided ? "_strided" : "", moves ? "_moved" : ""),
                     [=](Inputs& in) {
                       const Tensor x = in.normal(shape, dtype);
                       return DropoutProblem{
                           .x = strided ? in.strided(x) : x,
                           .y = strided ? in.strided_output(shape, dtype) : in.output(shape, dtype),
                           .p = p,
                           .seed = 0x123456789abcdef0u,
                           .stream = 5,
                           .offset = offset,
                           .moved = moves ? in.values({5e9}, {1}, DType::i64) : Tensor()};
                     },
                     cost});
  };
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (double p : {0.0, 0.1, 0.5, 1.0}) {
      for (int64_t n : {0, 1, 15, 63, 64, 65, 1031}) add({n}, dtype, p, 0, false);
    }
    add({7, 33}, dtype, 0.3, (uint64_t{1} << 32) - 3, true);  // the counter carries
    add({197, 769}, dtype, 0.25, 77, false);
    add({197, 33}, dtype, 0.25, 77, false, {}, true);
  }
  for (DType dtype : {DType::f32, DType::bf16}) {
    const double elements = 788.0 * 3072;
    add({788, 3072}, dtype, 0.1, 0, false, {.flops = 0, .bytes = 2 * elements * itemsize(dtype)});
  }
  return make_table(dropout_op(), std::move(cases), dropout_reference);
}

}  // namespace weft::kernels
