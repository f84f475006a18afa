// Programs, shapes and dtypes that fused is tested and timed on.
#pragma once

#include <limits>

#include "core/philox.h"
#include "core/view.h"
#include "kernels/fused/fused.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

/// A program's steps and results.
struct FusedProgram {
  std::vector<FusedStep> steps;
  std::vector<int> results;
};

inline OpTable fused_table() {
  using B = BinaryOp;
  using U = UnaryOp;
  using Problem = FusedProblem;
  std::vector<Case<Problem>> cases;
  const auto make = [](Inputs& in, std::vector<Tensor> inputs, const FusedProgram& program,
                       const Shape& shape, bool strided = false) {
    Problem p{.inputs = std::move(inputs), .steps = program.steps, .results = program.results};
    for (int result : program.results) {
      const DType dtype = p.dtype_of(result);
      p.outputs.push_back(strided ? in.strided_output(shape, dtype) : in.output(shape, dtype));
    }
    return p;
  };
  const auto add = [&](std::string name, std::function<Problem(Inputs&)> f, Cost cost = {}) {
    cases.push_back({std::move(name), std::move(f), cost});
  };

  // sigmoid(x y + z) x - y, and its gradients from dy: of x, y and z.
  const auto chain = [](DType d) {
    return FusedProgram{{{B::kMul, d, {0, 1}},
                         {B::kAdd, d, {3, 2}},
                         {U::kSigmoid, d, {4}},
                         {B::kMul, d, {5, 0}},
                         {B::kSub, d, {6, 1}}},
                        {7}};
  };
  const auto chain_backward = [](DType d) {
    return FusedProgram{{{B::kMul, d, {0, 1}},
                         {B::kAdd, d, {4, 2}},
                         {U::kSigmoid, d, {5}},
                         {U::kNeg, d, {3}},
                         {B::kMul, d, {3, 0}},
                         {B::kMul, d, {3, 6}},
                         {B::kSigmoidGrad, d, {6, 8}},
                         {B::kMul, d, {10, 1}},
                         {B::kMul, d, {10, 0}},
                         {B::kAdd, d, {9, 11}},
                         {B::kAdd, d, {7, 12}}},
                        {13, 14, 10}};
  };
  const auto normals = [](Inputs& in, int count, const Shape& shape, DType dtype) {
    std::vector<Tensor> tensors;
    for (int i = 0; i < count; ++i) tensors.push_back(in.normal(shape, dtype));
    return tensors;
  };
  for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (int64_t n : {0, 1, 31, 1024, 1057, 20011}) {
      add(fmt::format("chain_{}_{}", dtype, n),
          [=](Inputs& in) { return make(in, normals(in, 3, {n}, dtype), chain(dtype), {n}); });
    }
    add(fmt::format("chain_backward_{}", dtype), [=](Inputs& in) {
      return make(in, normals(in, 4, {3, 701}, dtype), chain_backward(dtype), {3, 701});
    });
    // A row, a column and a number; outputs with gaps.
    add(fmt::format("chain_broadcast_{}", dtype), [=](Inputs& in) {
      const Shape shape = {5, 7, 33};
      return make(in,
                  {view::expand(in.strided(in.normal({7, 33}, dtype)), shape),
                   view::expand(in.normal({5, 7, 1}, dtype), shape),
                   view::expand(in.normal({}, dtype), shape)},
                  chain(dtype), shape, true);
    });
    // A number beside dense operands.
    add(fmt::format("chain_scaled_{}", dtype), [=](Inputs& in) {
      const Shape shape = {3, 1001};
      return make(in,
                  {in.normal(shape, dtype), view::expand(in.normal({}, dtype), shape),
                   in.normal(shape, dtype)},
                  chain(dtype), shape);
    });
    add(fmt::format("chain_transposed_{}", dtype), [=](Inputs& in) {
      const Tensor x = view::transpose(in.normal({301, 47}, dtype), 0, 1);
      return make(in, {x, in.normal({47, 301}, dtype), in.normal({47, 301}, dtype)}, chain(dtype),
                  {47, 301});
    });
  }
  // Every dtype on its way through another: casts, tests, choices, integers that wrap around.
  for (DType from : kAllDTypes) {
    for (DType to : kAllDTypes) {
      add(fmt::format("cast_{}_{}", from, to), [=](Inputs& in) {
        const Tensor x =
            is_floating(from) ? in.normal({1057}, from, 20) : in.integers({1057}, from, 0, 1);
        return make(in, {x}, {{{MoveOp::kCast, to, {0}}, {MoveOp::kCast, from, {1}}}, {1, 2}},
                    {1057});
      });
    }
    add(fmt::format("choice_{}", from), [=](Inputs& in) {
      const auto numbers = [&] {
        return is_floating(from) ? in.normal({1057}, from) : in.integers({1057}, from, 0, 1);
      };
      const Tensor a = numbers(), b = numbers();
      return make(in, {a, b},
                  {{{B::kLt, DType::boolean, {0, 1}},
                    {MoveOp::kWhere, from, {2, 0, 1}},
                    {B::kAddScaled, from, {3, 1}, 3},
                    {U::kLogicalNot, DType::boolean, {2}},
                    {B::kLogicalXor, DType::boolean, {2, 5}}},
                   {3, 4, 6}},
                  {1057});
    });
  }
  add("mixed", [=](Inputs& in) {
    return make(in,
                {in.normal({1057}, DType::bf16), in.normal({1057}, DType::f32),
                 in.normal({1057}, DType::f64), in.integers({1057}, DType::i32)},
                {{{B::kMul, DType::f32, {0, 1}},
                  {B::kAdd, DType::f64, {4, 2}},
                  {B::kMul, DType::f32, {3, 4}},
                  {U::kSquare, DType::i32, {3}},
                  {U::kExp, DType::bf16, {0}},
                  {B::kSub, DType::f32, {8, 6}}},
                 {5, 6, 7, 9}},
                {1057});
  });
  // NaN, infinities and zeros of both signs against each other.
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const std::vector<double> special = {nan, inf, -inf, 0.0, -0.0, 1, -2.5, 3e38, 1e-40, -17};
  for (DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    add(fmt::format("special_{}", dtype), [=](Inputs& in) {
      const int64_t n = static_cast<int64_t>(special.size());
      return make(in,
                  {view::expand(in.values(special, {n, 1}, dtype), {n, n}),
                   view::expand(in.values(special, {n}, dtype), {n, n})},
                  {{{B::kMaximum, dtype, {0, 1}},
                    {U::kIsNan, DType::boolean, {2}},
                    {MoveOp::kWhere, dtype, {3, 1, 2}},
                    {U::kRelu, dtype, {4}},
                    {B::kReluGrad, dtype, {5, 1}}},
                   {2, 4, 6}},
                  {n, n});
    });
  }
  // More steps than buffers, results in their midst, and steps that are used more than once.
  for (int program = 0; program < 40; ++program) {
    add(fmt::format("random_{}", program), [=](Inputs& in) {
      Philox random(11, program);
      const DType dtype =
          std::array{DType::f32, DType::bf16, DType::f64, DType::f16}[random.below(4)];
      const int inputs = 1 + static_cast<int>(random.below(4));
      const int steps = 1 + static_cast<int>(random.below(24));
      constexpr std::array kUnary = {U::kNeg, U::kAbs, U::kTanh, U::kSigmoid, U::kErf, U::kRelu};
      constexpr std::array kBinary = {B::kAdd, B::kSub, B::kMaximum, B::kMinimum, B::kReluGrad};
      FusedProgram p;
      for (int i = 0; i < steps; ++i) {
        const int values = inputs + i;
        const auto value = [&] { return static_cast<int>(random.below(values)); };
        if (random.below(2)) {
          p.steps.push_back({kUnary[random.below(kUnary.size())], dtype, {value()}});
        } else {
          p.steps.push_back({kBinary[random.below(kBinary.size())], dtype, {value(), value()}});
        }
        if (i + 1 == steps || random.below(5) == 0) p.results.push_back(values);
      }
      return make(in, normals(in, inputs, {2, 613}, dtype), p, {2, 613});
    });
  }

  // The width of ViT-B/16, one image.
  const Shape shape = {197, 768};
  const double elements = static_cast<double>(numel(shape));
  for (DType dtype : {DType::f32, DType::bf16}) {
    const double bytes = elements * static_cast<double>(itemsize(dtype));
    add(fmt::format("chain_{}_vit_b_16", dtype),
        [=](Inputs& in) { return make(in, normals(in, 3, shape, dtype), chain(dtype), shape); },
        {.flops = 5 * elements, .bytes = 4 * bytes});
    add(fmt::format("chain_backward_{}_vit_b_16", dtype),
        [=](Inputs& in) {
          return make(in, normals(in, 4, shape, dtype), chain_backward(dtype), shape);
        },
        {.flops = 11 * elements, .bytes = 7 * bytes});
  }
  return make_table(fused_op(), std::move(cases), fused_reference);
}

}  // namespace weft::kernels
