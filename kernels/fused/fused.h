// A program of elementwise ops in one pass over memory: what unary, binary, where and copy would
// compute one after the other, without the way of their results to memory and back.
//
//   value i          = inputs[i]                             for i < inputs.size()
//   value inputs + i = steps[i].op(values before it)
//   outputs[k]       = value results[k]
//
// inputs, outputs: one shape, any strides (view::expand broadcasts, and a scalar is an expanded
// 0-dim tensor), together at most kMaxFusedOperands;
// at most kMaxFusedSteps. Outputs are assigned (=), have no repeated
// elements, and share none with each other or with an input; each has its value's dtype, and no
// value is the result of two.
//
// A step's result is rounded to the step's dtype as the op alone would store it. So results have
// the bits of the ops run one by one.
//
//   // y = a b + c
//   fused({.inputs = {a, b, c},
//          .steps = {{.op = BinaryOp::kMul, .dtype = DType::f32, .operands = {0, 1}},
//                    {.op = BinaryOp::kAdd, .dtype = DType::f32, .operands = {3, 2}}},
//          .results = {4},
//          .outputs = {y}});
#pragma once

#include <array>
#include <variant>

#include "kernels/binary/binary.h"
#include "kernels/op.h"
#include "kernels/unary/unary.h"

namespace weft::kernels {

enum class MoveOp : uint8_t {
  kWhere,  // the first operand, a bool, chooses between the others, which have the result's dtype
  kCast,   // converted to the result's dtype
};

struct FusedStep {
  std::variant<UnaryOp, BinaryOp, MoveOp> op;
  DType dtype = DType::f32;          // of the result
  std::array<int, 3> operands = {};  // values; as many as the op has
  double alpha = 1;                  // as unary's and binary's
};

/// How many operands an op has.
int operands_of(const FusedStep& step);
std::string_view name(const FusedStep& step);

inline constexpr int kMaxFusedOperands = 32, kMaxFusedSteps = 96;

struct FusedProblem {
  std::vector<Tensor> inputs;
  std::vector<FusedStep> steps;
  std::vector<int> results;
  std::vector<Tensor> outputs;

  DType dtype() const { return outputs[0].dtype(); }
  Device device() const { return outputs[0].device(); }
  std::string describe() const;
  /// Of a value.
  DType dtype_of(int value) const;
};

/// Places for the values of a program: one that nobody reads any more leaves its own to a later
/// one, never to the result of the step that reads it last.
struct FusedRegisters {
  std::vector<int> of;  // each value's
  int count = 0;
};
FusedRegisters fused_registers(const FusedProblem& problem);

/// Every op takes the dtypes of its operands and gives the step's dtype.
bool fused_fits(const FusedProblem& problem);
/// All arithmetic is in f32, or all of it in f64, and the values fit in a block's shared memory.
bool fused_fits_cuda(const FusedProblem& problem);

WEFT_DECLARE_OP(fused, FusedProblem);

}  // namespace weft::kernels
