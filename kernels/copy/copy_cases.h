// Shapes, dtypes and layouts that copy is tested and timed on.
#pragma once

#include <limits>

#include "core/view.h"
#include "kernels/copy/copy.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

inline OpTable copy_table() {
  using Problem = CopyProblem;
  std::vector<Case<Problem>> cases;
  const auto add = [&](std::string name, std::function<Problem(Inputs&)> make, Cost cost = {}) {
    cases.push_back({std::move(name), std::move(make), cost});
  };
  const auto numbers = [](Inputs& in, const Shape& shape, DType dtype) {
    if (is_floating(dtype)) return in.normal(shape, dtype, 100);
    const bool is_signed = dtype == DType::i64 || dtype == DType::i32;
    return in.integers(shape, dtype, is_signed ? -100000 : 0, is_signed ? 100000 : 200);
  };

  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> special = {
      std::nan(""), inf,          -inf,          0.0,  -0.0,  0.5,      -0.5,       2.5,
      255.5,        256,          -1.5,          449,  464,   465,      57344,      61439,
      65520,        2147483647.5, -2147483649.0, 3e38, 1e-46, 0x1p-149, 0x1.8p-133, 0x1.0201p0};
  for (DType from : kAllDTypes) {
    for (DType to : kAllDTypes) {
      add(fmt::format("{}_to_{}", from, to), [=](Inputs& in) {
        return Problem{numbers(in, {1057}, from), in.output({1057}, to)};
      });
      add(fmt::format("{}_to_{}_strided", from, to), [=](Inputs& in) {
        return Problem{in.strided(numbers(in, {3, 5, 33}, from)),
                       in.strided_output({3, 5, 33}, to)};
      });
      if (!is_floating(from)) continue;
      add(fmt::format("{}_to_{}_special", from, to), [=](Inputs& in) {
        const Shape shape = {static_cast<int64_t>(special.size())};
        return Problem{in.values(special, shape, from), in.output(shape, to)};
      });
    }
  }
  for (int64_t n : {0, 1, 15, 16, 17, 31, 32, 33, 255, 256, 1024, 1025, 300007}) {
    for (auto [from, to] : {std::pair{DType::f32, DType::f32},
                            {DType::f32, DType::bf16},
                            {DType::bf16, DType::f32},
                            {DType::f16, DType::bf16}}) {
      add(fmt::format("{}_to_{}_{}", from, to, n), [=, from = from, to = to](Inputs& in) {
        return Problem{in.integers({n}, from), in.output({n}, to)};
      });
    }
  }
  // Transposes: whole tiles, edges, too small for tiles; permutations; repetition.
  for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::u8}) {
    for (const Shape& shape : {Shape{64, 64}, {67, 129}, {3, 100}, {1, 37}}) {
      add(fmt::format("transpose_{}_{}", to_string(shape), dtype), [=](Inputs& in) {
        const Shape turned = {shape[1], shape[0]};
        return Problem{view::transpose(numbers(in, shape, dtype), 0, 1), in.output(turned, dtype)};
      });
    }
    for (const Shape& order : {Shape{0, 2, 1, 3}, {2, 0, 3, 1}, {0, 2, 3, 1}, {3, 2, 1, 0}}) {
      add(fmt::format("permute_{}_{}", to_string(order), dtype), [=](Inputs& in) {
        const Tensor x = view::permute(numbers(in, {3, 17, 5, 33}, dtype), order);
        return Problem{x, in.output(x.shape(), dtype)};
      });
    }
    add(fmt::format("expand_{}", dtype), [=](Inputs& in) {
      const Tensor x = view::expand(numbers(in, {4, 1, 19}, dtype), {4, 300, 19});
      return Problem{x, in.output(x.shape(), dtype)};
    });
    add(fmt::format("expand_long_rows_{}", dtype), [=](Inputs& in) {
      const Tensor x = view::expand(numbers(in, {3, 1, 1057}, dtype), {3, 7, 1057});
      return Problem{x, in.output(x.shape(), dtype)};
    });
    add(fmt::format("long_rows_{}", dtype), [=](Inputs& in) {
      const Shape shape = {2, 5, 1057};
      const Tensor x = view::slice(numbers(in, {2, 5, 2000}, dtype), 2, 3, 1060);
      return Problem{x, in.row_strided_output(shape, dtype)};
    });
  }
  // The gradient of a sum.
  for (DType from : {DType::f64, DType::f32, DType::bf16, DType::f8e4m3, DType::i64}) {
    for (DType to : kAllDTypes) {
      add(fmt::format("expand_scalar_{}_to_{}", from, to), [=](Inputs& in) {
        const Shape shape = {13, 1057};
        return Problem{view::expand(numbers(in, {}, from), shape), in.output(shape, to)};
      });
    }
  }

  // The weights of a ViT-B/16 block cast and transposed, the heads of its attention moved.
  const auto add_timed = [&](std::string name, DType from, DType to, double elements,
                             std::function<Problem(Inputs&)> make) {
    add(name, std::move(make), {.flops = 0, .bytes = elements * (itemsize(from) + itemsize(to))});
  };
  const Shape weight = {3072, 768};
  for (auto [from, to] :
       {std::pair{DType::f32, DType::f32}, {DType::f32, DType::bf16}, {DType::bf16, DType::f32}}) {
    add_timed(fmt::format("weight_{}_to_{}", from, to), from, to, numel(weight),
              [=, from = from, to = to](Inputs& in) {
                return Problem{in.integers(weight, from), in.output(weight, to)};
              });
  }
  for (DType dtype : {DType::f32, DType::bf16}) {
    add_timed(fmt::format("weight_transpose_{}", dtype), dtype, dtype, numel(weight),
              [=](Inputs& in) {
                return Problem{view::transpose(in.integers(weight, dtype), 0, 1),
                               in.output({768, 3072}, dtype)};
              });
    add_timed(fmt::format("expand_rows_{}", dtype), dtype, dtype, numel(weight) / 2,
              [=](Inputs& in) {
                return Problem{view::expand(in.integers({1, 768}, dtype), {3072, 768}),
                               in.output({3072, 768}, dtype)};
              });
    add_timed(fmt::format("expand_scalar_{}", dtype), dtype, dtype, numel(weight) / 2,
              [=](Inputs& in) {
                return Problem{view::expand(in.integers({}, dtype), {3072, 768}),
                               in.output({3072, 768}, dtype)};
              });
    add_timed(fmt::format("heads_{}", dtype), dtype, dtype, 8 * 197 * 768, [=](Inputs& in) {
      return Problem{view::permute(in.integers({8, 197, 12, 64}, dtype), {0, 2, 1, 3}),
                     in.output({8, 12, 197, 64}, dtype)};
    });
  }
  return make_table(copy_op(), std::move(cases), copy_reference);
}

}  // namespace weft::kernels
