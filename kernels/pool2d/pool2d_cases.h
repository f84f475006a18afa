// Shapes and dtypes that pool2d is tested and timed on.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/pool2d/pool2d.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

/// Kernel, stride, padding and dilation of one case, the same for rows and columns unless the
/// second size is given.
struct PoolWindow {
  int64_t kernel, stride, padding = 0, dilation = 1;
  int64_t kernel_columns = 0;  // 0: as kernel
  bool ceil = false;
};

/// Positions of maxima as the forward pass would save them for an image of random values.
inline Tensor argmax_of_windows(Inputs& in, Pool2dProblem p, const Shape& image) {
  p.x = in.normal(image, DType::f64);
  p.y = Tensor::empty(p.dy.shape(), DType::f64);
  p.dx = p.dy = Tensor();
  p.indices = Tensor::empty(p.y.shape(), DType::i32);
  const std::vector<double> positions = pool2d_reference(p)[1].values;
  return in.values(positions.empty() ? std::vector<double>{0} : positions, p.y.shape(), DType::i32);
}

/// Positions at random inside of each window of a dense kernel: what timed cases take, to spare the
/// reference.
inline Tensor places_in_windows(Inputs& in, const Pool2dProblem& p, const Shape& image) {
  const int64_t P = p.dy.size(2), Q = p.dy.size(3);
  const Tensor places =
      in.integers(p.dy.shape(), DType::i32, 0, static_cast<int>(p.kernel[0] * p.kernel[1]) - 1);
  int32_t* const place = places.data<int32_t>();
  for (int64_t i = 0; i < places.numel(); ++i) {
    const auto along = [&](int d, int64_t window, int64_t at) {
      return std::clamp<int64_t>(window * p.stride[d] - p.padding[d] + at, 0, image[2 + d] - 1);
    };
    const int64_t h = along(0, i / Q % P, place[i] / p.kernel[1]);
    const int64_t w = along(1, i % Q, place[i] % p.kernel[1]);
    place[i] = static_cast<int32_t>(h * image[3] + w);
  }
  return places;
}

inline OpTable pool2d_table() {
  using Problem = Pool2dProblem;
  std::vector<Case<Problem>> cases;
  const auto add = [&](Shape image, PoolWindow window, PoolKind kind, DType dtype, bool backward,
                       bool strided = false, bool include_pad = true, bool timed = false) {
    const int64_t columns = window.kernel_columns ? window.kernel_columns : window.kernel;
    const Shape result = {image[0], image[1],
                          pool2d_output_size(image[2], window.kernel, window.stride, window.padding,
                                             window.dilation, window.ceil),
                          pool2d_output_size(image[3], columns, window.stride, window.padding,
                                             window.dilation, window.ceil)};
    const std::string name = fmt::format(
        "{}_k{}x{}_s{}_p{}_d{}_{}_{}{}{}{}{}", to_string(image), window.kernel, columns,
        window.stride, window.padding, window.dilation, kind == PoolKind::kMax ? "max" : "average",
        dtype, backward ? "_backward" : "", strided ? "_strided" : "", window.ceil ? "_ceil" : "",
        include_pad ? "" : "_exclude_pad");
    Cost cost;
    if (timed) {
      const double outputs = static_cast<double>(numel(result));
      const double index_bytes = kind == PoolKind::kMax ? 4 * outputs : 0;
      cost = {.flops = outputs * window.kernel * columns,
              .bytes = (numel(image) + outputs) * itemsize(dtype) + index_bytes};
    }
    cases.push_back({name,
                     [=](Inputs& in) {
                       const auto layout = [&](Tensor t) { return strided ? in.strided(t) : t; };
                       Problem p{.kind = kind,
                                 .kernel = {window.kernel, columns},
                                 .stride = {window.stride, window.stride},
                                 .padding = {window.padding, window.padding},
                                 .dilation = {window.dilation, window.dilation},
                                 .count_include_pad = include_pad};
                       if (!backward) {
                         p.x = layout(in.normal(image, dtype));
                         p.y = in.output(result, dtype);
                         if (kind == PoolKind::kMax) p.indices = in.output(result, DType::i32);
                         return p;
                       }
                       p.dy = layout(in.normal(result, dtype));
                       if (kind == PoolKind::kMax) {
                         p.indices = timed ? places_in_windows(in, p, image)
                                           : argmax_of_windows(in, p, image);
                       }
                       p.dx = in.output(image, dtype);
                       return p;
                     },
                     cost});
  };
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (PoolKind kind : {PoolKind::kMax, PoolKind::kAverage}) {
      for (bool backward : {false, true}) {
        for (int64_t width : {1, 15, 16, 17, 31, 32, 33}) {
          add({2, 3, 5, width}, {3, 2, 1}, kind, dtype, backward);
        }
        add({0, 3, 4, 4}, {2, 2}, kind, dtype, backward);
        add({2, 0, 4, 4}, {2, 2}, kind, dtype, backward);
        add({1, 2, 37, 41}, {2, 2}, kind, dtype, backward);
        add({1, 2, 11, 67}, {3, 1, 1}, kind, dtype, backward);
        add({1, 2, 12, 50}, {2, 3}, kind, dtype, backward);
        add({1, 2, 13, 21}, {3, 2, 1, 2}, kind, dtype, backward);
        add({2, 2, 9, 12}, {2, 3, 0, 1, 5}, kind, dtype, backward, true);
        add({1, 2, 8, 14}, {3, 2, 1, 1, 0, true}, kind, dtype, backward);
        add({1, 2, 2, 3}, {4, 3, 0, 1, 5, true}, kind, dtype, backward);
        add({2, 3, 7, 7}, {7, 1}, kind, dtype, backward);
      }
    }
    for (bool backward : {false, true}) {
      add({2, 3, 9, 10}, {3, 2, 1}, PoolKind::kAverage, dtype, backward, true, false);
      add({2, 3, 8, 10}, {3, 2, 1, 1, 0, true}, PoolKind::kAverage, dtype, backward, false, false);
    }
  }
  // Infinities, a NaN, and equal elements, of which the first is taken.
  const std::vector<double> special = {-INFINITY, -INFINITY, 1,   1,    NAN, 2, NAN, INFINITY,
                                       -INFINITY, -INFINITY, 0.0, -0.0, -5,  2, 7,   INFINITY};
  for (DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    cases.push_back({fmt::format("special_{}", dtype), [=](Inputs& in) {
                       return Problem{.x = in.values(special, {1, 1, 4, 8}, dtype),
                                      .y = in.output({1, 1, 2, 4}, dtype),
                                      .indices = in.output({1, 1, 2, 4}, DType::i32),
                                      .kernel = {2, 2},
                                      .stride = {2, 2}};
                     }});
  }
  // Inference asks for no positions.
  for (DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    cases.push_back({fmt::format("special_without_indices_{}", dtype), [=](Inputs& in) {
                       return Problem{.x = in.values(special, {2, 3, 9, 21}, dtype),
                                      .y = in.output({2, 3, 5, 11}, dtype),
                                      .kernel = {3, 3},
                                      .stride = {2, 2},
                                      .padding = {1, 1}};
                     }});
  }
  // The compact CCT's pools and ResNet's.
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (bool backward : {false, true}) {
      add({32, 64, 32, 32}, {3, 2, 1}, PoolKind::kMax, dtype, backward, false, true, true);
    }
  }
  add({32, 128, 16, 16}, {3, 2, 1}, PoolKind::kMax, DType::f32, false, false, true, true);
  add({32, 64, 32, 32}, {2, 2}, PoolKind::kAverage, DType::f32, false, false, true, true);
  add({32, 64, 32, 32}, {2, 2}, PoolKind::kAverage, DType::f32, true, false, true, true);
  add({32, 64, 8, 8}, {8, 1}, PoolKind::kAverage, DType::f32, false, false, true, true);
  return make_table(pool2d_op(), std::move(cases), pool2d_reference);
}

}  // namespace weft::kernels
