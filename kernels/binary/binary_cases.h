// Shapes, dtypes and ops that binary is tested and timed on.
#pragma once

#include <bit>
#include <limits>

#include "core/view.h"
#include "kernels/binary/binary.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

inline OpTable binary_table() {
  using Problem = BinaryProblem;
  std::vector<Case<Problem>> cases;
  const auto all_ops = [](auto&& f) {
    for (int i = 0; i <= static_cast<int>(BinaryOp::kGeluTanhGrad); ++i)
      f(static_cast<BinaryOp>(i));
  };
  const auto add = [&](std::string name, std::function<Problem(Inputs&)> make, Cost cost = {}) {
    cases.push_back({std::move(name), std::move(make), cost});
  };
  const auto result_of = [](BinaryOp op, DType dtype) {
    return is_test(op) ? DType::boolean : dtype;
  };
  // Operands inside every domain; integers small enough for their powers.
  const auto left = [](Inputs& in, BinaryOp op, const Shape& shape, DType dtype) {
    if (!is_floating(dtype)) {
      const bool is_signed = dtype == DType::i64 || dtype == DType::i32;
      return in.integers(shape, dtype, is_signed ? -9 : 0, dtype == DType::boolean ? 1 : 9);
    }
    if (op == BinaryOp::kPow) return in.uniform(shape, dtype, 0.1, 4);
    if (op == BinaryOp::kSigmoidGrad) return in.uniform(shape, dtype, 0, 1);
    if (op == BinaryOp::kTanhGrad) return in.uniform(shape, dtype, -1, 1);
    return in.normal(shape, dtype, 3);
  };
  const auto right = [](Inputs& in, BinaryOp op, const Shape& shape, DType dtype) {
    if (is_floating(dtype)) return in.normal(shape, dtype, 2);
    const bool is_signed = dtype == DType::i64 || dtype == DType::i32;
    if (op == BinaryOp::kDiv || op == BinaryOp::kFloorDivide || op == BinaryOp::kRemainder)
      return in.integers(shape, dtype, 1, 5);
    if (op == BinaryOp::kPow) return in.integers(shape, dtype, 0, 4);
    return in.integers(shape, dtype, is_signed ? -9 : 0, dtype == DType::boolean ? 1 : 9);
  };

  all_ops([&](BinaryOp op) {
    for (DType dtype : kAllDTypes) {
      if (!is_floating(dtype) && !takes_integers(op)) continue;
      const double alpha = is_floating(dtype) ? 0.3 : 3;
      add(fmt::format("{}_{}_1057", name(op), dtype), [=](Inputs& in) {
        const Shape shape = {1057};
        return Problem{op, left(in, op, shape, dtype), right(in, op, shape, dtype),
                       in.output(shape, result_of(op, dtype)), alpha};
      });
      // A row, a column and gaps.
      add(fmt::format("{}_{}_broadcast", name(op), dtype), [=](Inputs& in) {
        const Shape shape = {5, 3, 33};
        return Problem{op, view::expand(in.strided(left(in, op, {3, 33}, dtype)), shape),
                       view::expand(right(in, op, {5, 3, 1}, dtype), shape),
                       in.strided_output(shape, result_of(op, dtype)), alpha};
      });
    }
  });
  // Every pair of NaN, infinities, zeros of both signs, far tails; gradients take a finite dy, for
  // 0 * inf depends on where the derivative vanishes.
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const std::vector<double> special = {nan, inf, -inf, 0.0, -0.0, 1,  -1,  2.5,  -2.5, 0.5, 3e38,
                                       -6,  -14, -17,  -39, -106, 21, 120, 1e-3, -801, 901, -1e19};
  const std::vector<double> results = {nan, 0.0, 1, -1, 0.5, 1e-30, 0.999};
  const std::vector<double> gradients = {nan, 0.0, -0.0, 1, -2.5, 1e-3};
  all_ops([&](BinaryOp op) {
    for (DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      add(fmt::format("{}_{}_special", name(op), dtype), [=](Inputs& in) {
        const bool of_result = op == BinaryOp::kSigmoidGrad || op == BinaryOp::kTanhGrad;
        const std::vector<double>& a = of_result ? results : special;
        const std::vector<double>& b = op >= BinaryOp::kReluGrad ? gradients : special;
        const int64_t rows = static_cast<int64_t>(a.size());
        const Shape shape = {rows, static_cast<int64_t>(b.size())};
        return Problem{op, view::expand(in.values(a, {rows, 1}, dtype), shape),
                       view::expand(in.values(b, {shape[1]}, dtype), shape),
                       in.output(shape, result_of(op, dtype)), 0.5};
      });
    }
  });
  // Quotients of every size, where divisions that round down may take the wrong integer: both
  // operands of every binade, and integers that divide each other.
  for (BinaryOp op : {BinaryOp::kFloorDivide, BinaryOp::kRemainder, BinaryOp::kAtan2}) {
    add(fmt::format("{}_f32_binades", name(op)), [=](Inputs& in) {
      std::vector<double> a, b;
      for (uint64_t k = 0; k < 4096; ++k) {
        a.push_back(std::bit_cast<float>(static_cast<uint32_t>(k * 1048573)));
        b.push_back(std::bit_cast<float>(static_cast<uint32_t>(k * 2654435761)));
      }
      for (int i = -1500; i <= 1500; ++i) {
        a.push_back(i);
        b.push_back(i % 7 + 0.25 * (i % 5));
      }
      const Shape shape = {static_cast<int64_t>(a.size())};
      return Problem{op, in.values(a, shape, DType::f32), in.values(b, shape, DType::f32),
                     in.output(shape, DType::f32)};
    });
  }
  for (int64_t n : {0, 1, 15, 16, 17, 31, 32, 33, 255, 256, 1024, 1025, 16411}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      add(fmt::format("gelu_erf_grad_{}_{}", dtype, n), [=](Inputs& in) {
        return Problem{BinaryOp::kGeluErfGrad, in.normal({n}, dtype), in.normal({n}, dtype),
                       in.output({n}, dtype)};
      });
    }
  }
  // Mixed dtypes: the arithmetic is the wider operand's, the result is rounded once.
  for (auto [a, b, y] : {std::array{DType::f32, DType::bf16, DType::f32},
                         std::array{DType::bf16, DType::f16, DType::f16},
                         std::array{DType::f64, DType::f32, DType::bf16},
                         std::array{DType::i32, DType::f32, DType::f32},
                         std::array{DType::i32, DType::u8, DType::i64},
                         std::array{DType::boolean, DType::boolean, DType::i32},
                         std::array{DType::f32, DType::f32, DType::i32}}) {
    add(fmt::format("add_{}_{}_{}", a, b, y), [=, a = a, b = b, y = y](Inputs& in) {
      return Problem{BinaryOp::kAdd, left(in, BinaryOp::kAdd, {1057}, a),
                     right(in, BinaryOp::kAdd, {1057}, b), in.output({1057}, y)};
    });
  }
  // Layouts: a scalar operand, rows shorter and longer than a block, a transpose, y is a or b.
  add("mul_f32_scalar", [](Inputs& in) {
    return Problem{BinaryOp::kMul, in.normal({37, 401}, DType::f32),
                   view::expand(in.normal({}, DType::f32), {37, 401}),
                   in.output({37, 401}, DType::f32)};
  });
  for (int64_t columns : {3, 255, 257, 1025}) {
    add(fmt::format("add_bf16_bias_{}", columns), [=](Inputs& in) {
      const Shape shape = {67, columns};
      return Problem{BinaryOp::kAdd, in.normal(shape, DType::bf16),
                     view::expand(in.normal({columns}, DType::bf16), shape),
                     in.output(shape, DType::bf16)};
    });
  }
  add("add_f32_transposed", [](Inputs& in) {
    return Problem{BinaryOp::kAdd, view::transpose(in.normal({67, 257}, DType::f32), 0, 1),
                   in.normal({257, 67}, DType::f32), in.output({257, 67}, DType::f32)};
  });
  add("sub_f32_in_place_left", [](Inputs& in) {
    const Tensor a = in.inout(in.normal({2057}, DType::f32));
    return Problem{BinaryOp::kSub, a, in.normal({2057}, DType::f32), a};
  });
  add("sub_bf16_in_place_right", [](Inputs& in) {
    const Tensor b = in.inout(in.normal({2057}, DType::bf16));
    return Problem{BinaryOp::kSub, in.normal({2057}, DType::bf16), b, b};
  });

  // Residual and bias additions and GELU's gradient at ViT-B/16's sizes.
  const auto add_timed = [&](std::string label, BinaryOp op, DType dtype, Shape shape, bool bias) {
    const double elements = static_cast<double>(numel(shape));
    add(fmt::format("{}_{}_vit_b_16", label, dtype),
        [=](Inputs& in) {
          const Tensor b = bias ? view::expand(in.integers({shape.back()}, dtype), shape)
                                : in.integers(shape, dtype);
          return Problem{op, in.integers(shape, dtype), b, in.output(shape, dtype)};
        },
        {.flops = elements, .bytes = (bias ? 2 : 3) * elements * itemsize(dtype)});
  };
  for (DType dtype : {DType::f32, DType::bf16}) {
    add_timed("residual", BinaryOp::kAdd, dtype, {8, 197, 768}, false);
    add_timed("bias", BinaryOp::kAdd, dtype, {4, 197, 768}, true);
    add_timed("gelu_erf_grad", BinaryOp::kGeluErfGrad, dtype, {197, 3072}, false);
  }
  return make_table(binary_op(), std::move(cases), binary_reference);
}

}  // namespace weft::kernels
