// Shapes, dtypes and ops that unary is tested and timed on.
#pragma once

#include <bit>
#include <limits>
#include <numbers>

#include "core/view.h"
#include "kernels/testing/op_table.h"
#include "kernels/unary/unary.h"

namespace weft::kernels {

inline OpTable unary_table() {
  using Problem = UnaryProblem;
  std::vector<Case<Problem>> cases;
  const auto all_ops = [](auto&& f) {
    for (int i = 0; i <= static_cast<int>(UnaryOp::kIsFinite); ++i) f(static_cast<UnaryOp>(i));
  };
  const auto result_of = [](UnaryOp op, DType dtype) {
    return is_test(op) ? DType::boolean : dtype;
  };
  const auto add = [&](std::string name, std::function<Problem(Inputs&)> make, Cost cost = {}) {
    cases.push_back({std::move(name), std::move(make), cost});
  };
  // Inside every domain, and over all the pieces of the approximations.
  const auto random = [](Inputs& in, UnaryOp op, const Shape& shape, DType dtype) {
    switch (op) {
      case UnaryOp::kSqrt:
      case UnaryOp::kRsqrt:
      case UnaryOp::kLog:
      case UnaryOp::kLog2:
      case UnaryOp::kLog10:
        return in.uniform(shape, dtype, 0x1p-6, 12);
      case UnaryOp::kAsin:
      case UnaryOp::kAcos:
      case UnaryOp::kAtanh:
        return in.uniform(shape, dtype, -1, 1);
      case UnaryOp::kAcosh:
        return in.uniform(shape, dtype, 1, 12);
      case UnaryOp::kLog1p:
        return in.uniform(shape, dtype, -0.9, 12);
      default:
        return in.normal(shape, dtype, 4);
    }
  };

  all_ops([&](UnaryOp op) {
    for (DType dtype : kAllDTypes) {
      const bool is_float = is_floating(dtype);
      if (!is_float && !takes_integers(op)) continue;
      const auto make = [=](Inputs& in, const Shape& shape) {
        return is_float
                   ? random(in, op, shape, dtype)
                   : in.integers(shape, dtype, dtype == DType::i64 || dtype == DType::i32 ? -9 : 0,
                                 dtype == DType::boolean ? 1 : 9);
      };
      const double alpha = is_float ? 0.3 : 3;
      add(fmt::format("{}_{}_1057", name(op), dtype), [=](Inputs& in) {
        return Problem{op, make(in, {1057}), in.output({1057}, result_of(op, dtype)), alpha};
      });
      add(fmt::format("{}_{}_strided", name(op), dtype), [=](Inputs& in) {
        const Shape shape = {3, 5, 33};
        return Problem{op, in.strided(make(in, shape)),
                       in.strided_output(shape, result_of(op, dtype)), alpha};
      });
    }
  });
  // NaN, infinities, zeros of both signs, subnormals, halves, and the borders of the
  // approximations.
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> special = {
      std::nan(""), inf,   -inf,     0.0,       -0.0,     1,    -1,    0.5,   -0.5,   1.5,
      2.5,          -2.5,  0x1p-149, -0x1p-149, 0x1p-130, 3e38, -3e38, 88.7,  88.8,   89,
      -87.3,        -103,  -104,     -105,      5.9,      -6,   -13,   -14.4, 16,     -16,
      17,           -38.5, 1e-8,     104.5,     -1e19,    1e19, 710,   -746,  0.4999, 0.5001};
  all_ops([&](UnaryOp op) {
    for (DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      add(fmt::format("{}_{}_special", name(op), dtype), [=](Inputs& in) {
        const Shape shape = {static_cast<int64_t>(special.size())};
        return Problem{op, in.values(special, shape, dtype), in.output(shape, result_of(op, dtype)),
                       -0.5};
      });
    }
  });
  // What the vectors of C's functions are made of: floats of every binade and sign, multiples of pi
  // / 2, which cancel, and the angles above the largest one that vectors reduce.
  all_ops([&](UnaryOp op) {
    if (op < UnaryOp::kExp2 || op > UnaryOp::kAtanh) return;
    add(fmt::format("{}_f32_binades", name(op)), [=](Inputs& in) {
      std::vector<double> x;
      for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 1048573) {
        x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
      }
      for (int n = 1; n < 6000; n += 7) {
        for (double sign : {1, -1}) {
          x.push_back(static_cast<float>(sign * n * std::numbers::pi / 2));
        }
      }
      const Shape shape = {static_cast<int64_t>(x.size())};
      return Problem{op, in.values(x, shape, DType::f32), in.output(shape, DType::f32)};
    });
  });
  for (int64_t n : {0, 1, 15, 16, 17, 31, 32, 33, 255, 256, 1024, 1025, 16411}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      add(fmt::format("exp_{}_{}", dtype, n), [=](Inputs& in) {
        return Problem{UnaryOp::kExp, in.normal({n}, dtype), in.output({n}, dtype)};
      });
    }
  }
  // Layouts: repeated, transposed, a row too short and too long for one block; y is x.
  add("neg_f32_expanded", [](Inputs& in) {
    return Problem{UnaryOp::kNeg, view::expand(in.normal({7, 1, 3}, DType::f32), {2, 7, 300, 3}),
                   in.output({2, 7, 300, 3}, DType::f32)};
  });
  add("neg_f32_scalar", [](Inputs& in) {
    return Problem{UnaryOp::kNeg, view::expand(in.normal({}, DType::f32), {5, 401}),
                   in.output({5, 401}, DType::f32)};
  });
  add("neg_f32_transposed", [](Inputs& in) {
    return Problem{UnaryOp::kNeg, view::transpose(in.normal({301, 47}, DType::f32), 0, 1),
                   in.output({47, 301}, DType::f32)};
  });
  add("neg_bf16_strided_rows", [](Inputs& in) {
    return Problem{UnaryOp::kNeg, in.strided(in.normal({3, 1057}, DType::bf16)),
                   in.strided_output({3, 1057}, DType::bf16)};
  });
  add("tanh_f32_in_place", [](Inputs& in) {
    const Tensor x = in.inout(in.normal({2057}, DType::f32));
    return Problem{UnaryOp::kTanh, x, x};
  });
  // One dtype to another, rounded once.
  for (DType to : kAllDTypes) {
    add(fmt::format("scale_f32_to_{}", to), [=](Inputs& in) {
      return Problem{UnaryOp::kScale, in.normal({1057}, DType::f32, 40), in.output({1057}, to),
                     0.7};
    });
  }

  // The hidden layer of ViT-B/16's MLP, per image; relu at batch 4 shows the memory's bandwidth.
  const auto add_timed = [&](UnaryOp op, DType dtype, int64_t batch) {
    const Shape shape = {batch * 197, 3072};
    const double elements = static_cast<double>(numel(shape));
    add(fmt::format("{}_{}_vit_b_16_batch{}", name(op), dtype, batch),
        [=](Inputs& in) {
          return Problem{op, in.integers(shape, dtype, -4, 4), in.output(shape, dtype)};
        },
        {.flops = elements, .bytes = 2 * elements * itemsize(dtype)});
  };
  for (DType dtype : {DType::f32, DType::bf16}) {
    add_timed(UnaryOp::kRelu, dtype, 4);
    for (UnaryOp op : {UnaryOp::kExp, UnaryOp::kTanh, UnaryOp::kSilu, UnaryOp::kGeluErf}) {
      add_timed(op, dtype, 1);
    }
  }
  return make_table(unary_op(), std::move(cases), unary_reference);
}

}  // namespace weft::kernels
