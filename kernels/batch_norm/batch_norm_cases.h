// Shapes and dtypes that batch_norm is tested and timed on.
#pragma once

#include "core/view.h"
#include "kernels/batch_norm/batch_norm.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

inline OpTable batch_norm_table() {
  using Problem = BatchNormProblem;
  enum class Layout { kContiguous, kStrided, kChannelsLast };
  std::vector<Case<Problem>> cases;
  const auto add = [&](Shape shape, DType dtype, bool training, bool backward, bool affine = true,
                       Layout layout = Layout::kContiguous, double shift = 0.5,
                       bool timed = false) {
    const std::string label = fmt::format("{}_{}_{}{}{}{}{}", to_string(shape), dtype,
                                          training ? "training" : "evaluation",
                                          backward ? "_backward" : "", affine ? "" : "_plain",
                                          layout == Layout::kStrided        ? "_strided"
                                          : layout == Layout::kChannelsLast ? "_last"
                                                                            : "",
                                          shift > 1 ? "_far_mean" : "");
    Cost cost;
    if (timed) {
      const double elements = static_cast<double>(numel(shape));
      cost = {.flops = (backward ? 9 : 7) * elements,
              .bytes = (backward ? 3 : 2) * elements * itemsize(dtype)};
    }
    cases.push_back({label,
                     [=](Inputs& in) {
                       const DType statistics = dtype == DType::f64 ? DType::f64 : DType::f32;
                       const Shape channels = {shape[1]};
                       const auto input = [&](double offset) {
                         if (layout == Layout::kChannelsLast) {
                           Shape last = {shape[0], shape[2], shape[3], shape[1]};
                           return view::permute(in.normal(last, dtype, 1, offset), {0, 3, 1, 2});
                         }
                         const Tensor t = in.normal(shape, dtype, 1, offset);
                         return layout == Layout::kStrided ? in.strided(t) : t;
                       };
                       Problem p{.x = input(shift), .training = training};
                       if (affine) p.weight = in.normal(channels, statistics);
                       if (backward) {
                         p.mean = in.normal(channels, statistics);
                         p.variance = in.uniform(channels, statistics, 0.1, 2);
                         p.dy = input(0);
                         p.dx = in.output(shape, dtype);
                         if (affine) p.dweight = in.output(channels, statistics);
                         if (affine) p.dbias = in.output(channels, statistics);
                         return p;
                       }
                       if (affine) p.bias = in.normal(channels, statistics);
                       p.y = in.output(shape, dtype);
                       if (training) {
                         p.mean = in.output(channels, statistics);
                         p.variance = in.output(channels, statistics);
                       } else {
                         p.mean = in.normal(channels, statistics);
                         p.variance = in.uniform(channels, statistics, 0.1, 2);
                       }
                       return p;
                     },
                     cost});
  };
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (bool training : {true, false}) {
      for (bool backward : {false, true}) {
        for (int64_t width : {1, 15, 16, 17, 31, 32, 33}) {
          add({3, 2, 1, width}, dtype, training, backward);
        }
        add({2, 0, 3, 3}, dtype, training, backward);
        add({2, 3, 71, 59}, dtype, training, backward);  // more than one piece to a run
        add({37, 5}, dtype, training, backward);
        add({4, 3, 5}, dtype, training, backward, false);
        add({4, 3, 5, 7}, dtype, training, backward, true, Layout::kStrided);
        add({4, 6, 5, 7}, dtype, training, backward, true, Layout::kChannelsLast);
        add({37, 5}, dtype, training, backward, true, Layout::kStrided);
      }
    }
    add({8, 3, 16, 16}, dtype, true, false, true, Layout::kContiguous, 100);
  }
  // ResNet's first stage at 32x32.
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (bool backward : {false, true}) {
      add({16, 64, 32, 32}, dtype, true, backward, true, Layout::kContiguous, 0.5, true);
    }
  }
  return make_table(batch_norm_op(), std::move(cases), batch_norm_reference);
}

}  // namespace weft::kernels
