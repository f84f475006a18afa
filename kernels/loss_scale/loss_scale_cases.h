// States that loss_scale is tested on: each way that the scale can go.
#pragma once

#include "kernels/loss_scale/loss_scale.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

inline OpTable loss_scale_table() {
  using Problem = LossScaleProblem;
  std::vector<Case<Problem>> cases;
  const auto add = [&](std::string name, const LossScaleState& state, double found_inf,
                       const LossScaleRule& rule) {
    cases.push_back({std::move(name), [=](Inputs& in) {
                       const std::vector<double> trackers = {
                           static_cast<double>(state.growth_tracker),
                           static_cast<double>(state.hysteresis_left)};
                       return Problem{.scale = in.inout(in.values({state.scale}, {}, DType::f32)),
                                      .trackers = in.inout(in.values(trackers, {2}, DType::i64)),
                                      .inverse = in.output({}, DType::f32),
                                      .found_inf = in.values({found_inf}, {}, DType::f32),
                                      .rule = rule};
                     }});
  };
  add("counts", {1024, 3}, 0, {.growth_interval = 5});
  add("grows", {1024, 4}, 0, {.growth_interval = 5});
  add("grows_by_an_odd_factor", {1000, 4}, 0, {.growth_factor = 1.7, .growth_interval = 5});
  add("stays_finite", {0x1p127f, 4}, 0, {.growth_interval = 5});
  add("shrinks", {1024, 4}, 1, {.growth_interval = 5});
  add("shrinks_by_an_odd_factor", {1000, 4}, 1, {.backoff_factor = 0.3, .growth_interval = 5});
  add("uses_hysteresis", {1024, 4, 2}, 1, {.growth_interval = 5, .hysteresis = 2});
  add("gives_hysteresis_back", {1024, 4, 1}, 0, {.growth_interval = 5, .hysteresis = 3});
  add("stops_at_the_least", {1.5, 0}, 1, {.min_scale = 1});
  add("vanishes", {0x1p-149f, 0}, 1, {});
  return make_table(loss_scale_op(), std::move(cases), loss_scale_reference);
}

}  // namespace weft::kernels
