// The ops one by one, by their own variants on the CPU: equality is demanded of the CPU's variants.
//
// On a GPU the ops' functions have other last bits, which later steps carry on. A value's bound
// there is its op's own, plus what the op's reference changes by when each operand is moved to both
// ends of what it may be.
#include <algorithm>
#include <cmath>

#include "kernels/copy/copy.h"
#include "kernels/fused/fused.h"
#include "kernels/where/where.h"

namespace weft::kernels {
namespace {

using Operands = std::vector<Tensor>;

/// f(unary's, binary's, where's or copy's problem), whichever the step is.
template <class F>
auto with_problem(const FusedStep& step, const Operands& x, const Tensor& y, F&& f) {
  if (const auto* unary = std::get_if<UnaryOp>(&step.op)) {
    return f(UnaryProblem{.op = *unary, .x = x[0], .y = y, .alpha = step.alpha});
  }
  if (const auto* binary = std::get_if<BinaryOp>(&step.op)) {
    return f(BinaryProblem{.op = *binary, .a = x[0], .b = x[1], .y = y, .alpha = step.alpha});
  }
  if (std::get<MoveOp>(step.op) == MoveOp::kWhere) {
    return f(WhereProblem{.condition = x[0], .a = x[1], .b = x[2], .y = y});
  }
  return f(CopyProblem{.x = x[0], .y = y});
}

struct Run {
  void operator()(const UnaryProblem& p) const { unary(p); }
  void operator()(const BinaryProblem& p) const { binary(p); }
  void operator()(const WhereProblem& p) const { where(p); }
  void operator()(const CopyProblem& p) const { copy(p); }
};

struct Reference {
  Expected operator()(const UnaryProblem& p) const { return unary_reference(p)[0]; }
  Expected operator()(const BinaryProblem& p) const { return binary_reference(p)[0]; }
  Expected operator()(const WhereProblem& p) const { return where_reference(p)[0]; }
  Expected operator()(const CopyProblem& p) const { return copy_reference(p)[0]; }
};

/// A value: its elements, and how far from each a GPU's may lie.
struct Value {
  Tensor elements;
  std::vector<double> bounds;

  bool is_exact() const {
    return std::ranges::all_of(bounds, [](double bound) { return bound == 0; });
  }
  /// Every element moved by its bound, up or down.
  Tensor moved(double sign) const {
    std::vector<double> values = elements.to_vector();
    for (size_t i = 0; i < values.size(); ++i) values[i] += sign * bounds[i];
    const Tensor wide = Tensor::from(values, elements.shape());
    return contiguous(wide, elements.dtype());
  }
};

Value value_of(const FusedStep& step, const std::vector<Value>& values) {
  std::vector<const Value*> operands;
  Operands x;
  for (int k = 0; k < operands_of(step); ++k) {
    operands.push_back(&values[step.operands[k]]);
    x.push_back(operands.back()->elements);
  }
  Value value = {Tensor::empty(x[0].shape(), step.dtype), {}};
  with_problem(step, x, value.elements, Run());
  const Expected expected = with_problem(step, x, value.elements, Reference());
  value.bounds = expected.bounds;
  for (size_t k = 0; k < x.size(); ++k) {
    if (operands[k]->is_exact()) continue;
    std::vector<double> change(value.bounds.size());
    for (double sign : {-1.0, 1.0}) {
      Operands other = x;
      other[k] = operands[k]->moved(sign);
      const Expected there = with_problem(step, other, value.elements, Reference());
      for (size_t i = 0; i < change.size(); ++i) {
        const double difference = std::abs(there.values[i] - expected.values[i]) + there.bounds[i];
        if (std::isfinite(difference)) change[i] = std::max(change[i], difference);
      }
    }
    for (size_t i = 0; i < change.size(); ++i) value.bounds[i] += change[i];
  }
  return value;
}

}  // namespace

std::vector<Expected> fused_reference(const FusedProblem& p) {
  std::vector<Value> values;
  for (const Tensor& input : p.inputs) {
    values.push_back({contiguous(input), std::vector<double>(input.numel())});
  }
  for (const FusedStep& step : p.steps) values.push_back(value_of(step, values));
  std::vector<Expected> expected;
  for (int result : p.results) {
    const Value& value = values[result];
    expected.push_back({.values = value.elements.to_vector(),
                        .bounds = std::vector<double>(value.bounds.size()),
                        .device_bounds = value.bounds});
  }
  return expected;
}

}  // namespace weft::kernels
