// Shapes and dtypes that index is tested and timed on.
#pragma once

#include "core/view.h"
#include "kernels/index/index.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

inline OpTable index_table() {
  using Problem = IndexProblem;
  std::vector<Case<Problem>> cases;
  // `indexed` is the shape that indices point into; `moved` the other one, and the index's for the
  // kinds with an index per element.
  const auto add = [&](IndexKind kind, Shape indexed, Shape moved, int axis, DType dtype,
                       bool strided = false, DType index_type = DType::i64, bool wrap = false,
                       bool exact = false, Cost cost = {}) {
    const std::string label =
        fmt::format("{}_{}_{}_axis{}_{}_by_{}{}{}{}", name(kind), to_string(indexed),
                    to_string(moved), axis, dtype, index_type, strided ? "_strided" : "",
                    wrap ? "_wrap" : "", exact ? "_integers" : "");
    cases.push_back({label,
                     [=](Inputs& in) {
                       const auto layout = [&](Tensor t) { return strided ? in.strided(t) : t; };
                       const auto values = [&](const Shape& shape) {
                         return is_floating(dtype) && !exact ? in.normal(shape, dtype)
                                                             : in.integers(shape, dtype, -3, 3);
                       };
                       Problem p{.kind = kind, .axis = axis, .wrap_negative = wrap};
                       const int64_t size = indexed[axis];
                       const Shape index_shape = p.by_slice() ? Shape{moved[axis]} : moved;
                       p.index = layout(in.integers(index_shape, index_type, wrap ? -size : 0,
                                                    std::max<int64_t>(0, size - 1)));
                       p.x = layout(values(p.reads() ? indexed : moved));
                       if (p.reads()) {
                         p.y = strided ? in.strided_output(moved, dtype) : in.output(moved, dtype);
                       } else {
                         p.y = in.inout(values(indexed));
                       }
                       return p;
                     },
                     cost});
  };
  // The latest case again with a list of indices that is expanded to all elements of a slice.
  const auto add_expanded = [&](int axis) {
    const Case<Problem> latest = cases.back();
    cases.push_back({latest.name + "_expanded", [make = latest.make, axis](Inputs& in) {
                       Problem p = make(in);
                       const Shape shape = p.index.shape();
                       for (int d = 0; d < shape.size(); ++d) {
                         if (d != axis) p.index = view::narrow(p.index, d, 0, 1);
                       }
                       p.index = view::expand(p.index, shape);
                       return p;
                     }});
  };
  for (DType dtype : kAllDTypes) {
    add(IndexKind::kGather, {3, 7, 5}, {3, 4, 5}, 1, dtype);
    add(IndexKind::kSelect, {11, 33}, {8, 33}, 0, dtype);
    add(IndexKind::kScatter, {3, 7, 5}, {3, 12, 5}, 1, dtype);
  }
  for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::i32}) {
    for (bool strided : {false, true}) {
      for (IndexKind kind : {IndexKind::kGather, IndexKind::kScatter, IndexKind::kScatterAdd}) {
        add(kind, {6, 9}, {4, 7}, 1, dtype, strided, DType::i32);  // smaller beside the axis
        add(kind, {5, 3, 4}, {9, 3, 4}, 0, dtype, strided);
        add_expanded(0);
        add(kind, {2, 7, 3}, {2, 13, 3}, 1, dtype, strided, DType::i32, true);
        add_expanded(1);
        add(kind, {17}, {33}, 0, dtype, strided, DType::i64, true);
      }
      for (IndexKind kind : {IndexKind::kSelect, IndexKind::kAdd}) {
        for (int64_t n : {0, 1, 15, 16, 17, 31, 32, 33, 131}) {
          add(kind, {7, n}, {10, n}, 0, dtype, strided);
        }
        add(kind, {2, 7, 3}, {2, 13, 3}, 1, dtype, strided, DType::i32, true);
        add(kind, {4, 6}, {4, 0}, 1, dtype, strided);
      }
    }
  }
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32}) {
    add(IndexKind::kAdd, {5, 70}, {200, 70}, 0, dtype, false, DType::i64, false, true);
    add(IndexKind::kScatterAdd, {5, 70}, {50, 70}, 0, dtype, false, DType::i64, false, true);
  }
  // An embedding of 1,000 rows of ViT-B's width and its gradient; class scores picked by label.
  for (DType dtype : {DType::f32, DType::bf16}) {
    const double bytes = 512.0 * 768 * itemsize(dtype);
    add(IndexKind::kSelect, {1000, 768}, {512, 768}, 0, dtype, false, DType::i64, false, false,
        {.bytes = 2 * bytes});
    add(IndexKind::kAdd, {1000, 768}, {512, 768}, 0, dtype, false, DType::i64, false, false,
        {.flops = 512.0 * 768, .bytes = 3 * bytes});
  }
  add(IndexKind::kGather, {4096, 100}, {4096, 1}, 1, DType::f32, false, DType::i64, false, false,
      {.bytes = 4096.0 * 16});
  return make_table(index_op(), std::move(cases), index_reference);
}

}  // namespace weft::kernels
