// Distributions, shapes and dtypes that random is tested and timed on.
#pragma once

#include "kernels/random/random.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

inline OpTable random_table() {
  std::vector<Case<RandomProblem>> cases;
  const auto add = [&](Shape shape, DType dtype, Distribution distribution, bool strided,
                       Cost cost = {}) {
    cases.push_back(
        {fmt::format("{}_{}_{}{}", shape, dtype, name(distribution), strided ? "_strided" : ""),
         [=](Inputs& in) {
           RandomProblem p{.y = strided ? in.strided_output(shape, dtype) : in.output(shape, dtype),
                           .distribution = distribution};
           p.seed = 0xfeedfacecafebeefu, p.stream = 3, p.offset = 11;
           if (distribution == Distribution::kIntegers) p.low = 0, p.high = 10;
           if (distribution == Distribution::kUniform) p.low = -0.5, p.high = 1.5;
           if (distribution == Distribution::kTruncNormal) p.low = -2, p.high = 2.5;
           p.mean = distribution == Distribution::kNormal ? 0.25 : 0;
           p.std = 1.5, p.p = 0.3;
           return p;
         },
         cost});
  };
  using enum Distribution;
  for (Distribution distribution : {kUniform, kNormal, kTruncNormal, kBernoulli, kIntegers}) {
    for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      for (int64_t n : {0, 1, 3, 4, 33, 4099}) add({n}, dtype, distribution, false);
      add({5, 7}, dtype, distribution, true);
    }
  }
  add({100}, DType::i64, kIntegers, false);
  add({100}, DType::boolean, kBernoulli, false);
  add({3072, 768}, DType::f32, kUniform, false, {.flops = 0, .bytes = 4.0 * 3072 * 768});
  return make_table(random_op(), std::move(cases), random_reference);
}

}  // namespace weft::kernels
