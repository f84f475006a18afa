#include "kernels/fused/fused.h"

#include <fmt/ranges.h>

#include "kernels/elementwise/convert.h"

namespace weft::kernels {

#define WEFT_OP fused
#define WEFT_PROBLEM FusedProblem
#include "kernels/op_list_inl.h"

namespace {

bool fits(const FusedProblem& p, const FusedStep& step) {
  const auto operand = [&](int i) { return p.dtype_of(step.operands[i]); };
  if (const auto* unary = std::get_if<UnaryOp>(&step.op)) {
    return unary_takes(*unary, operand(0), step.dtype);
  }
  if (const auto* binary = std::get_if<BinaryOp>(&step.op)) {
    return binary_takes(*binary, operand(0), operand(1), step.dtype);
  }
  if (std::get<MoveOp>(step.op) == MoveOp::kCast) return true;
  return operand(0) == DType::boolean && operand(1) == step.dtype && operand(2) == step.dtype;
}

/// The type of a step's arithmetic; of a move nothing.
std::optional<DType> arithmetic_of(const FusedProblem& p, const FusedStep& step) {
  const auto operand = [&](int i) { return p.dtype_of(step.operands[i]); };
  if (std::holds_alternative<UnaryOp>(step.op)) return arithmetic_type(operand(0));
  if (std::holds_alternative<BinaryOp>(step.op)) return arithmetic_type(operand(0), operand(1));
  return std::nullopt;
}

/// An op on bools that gives the same for the numbers 0 and 1 of a float.
bool is_logical(const FusedStep& step) {
  const auto* unary = std::get_if<UnaryOp>(&step.op);
  const auto* binary = std::get_if<BinaryOp>(&step.op);
  return (unary && is_test(*unary)) || (binary && is_test(*binary));
}

}  // namespace

int operands_of(const FusedStep& step) {
  if (std::holds_alternative<BinaryOp>(step.op)) return 2;
  const auto* move = std::get_if<MoveOp>(&step.op);
  return move && *move == MoveOp::kWhere ? 3 : 1;
}

std::string_view name(const FusedStep& step) {
  if (const auto* unary = std::get_if<UnaryOp>(&step.op)) return name(*unary);
  if (const auto* binary = std::get_if<BinaryOp>(&step.op)) return name(*binary);
  return std::get<MoveOp>(step.op) == MoveOp::kWhere ? "where" : "cast";
}

bool fused_fits(const FusedProblem& p) {
  const int values = static_cast<int>(p.inputs.size() + p.steps.size());
  for (int i = 0; i < static_cast<int>(p.steps.size()); ++i) {
    const FusedStep& step = p.steps[i];
    for (int k = 0; k < operands_of(step); ++k) {
      if (step.operands[k] < 0 || step.operands[k] >= static_cast<int>(p.inputs.size()) + i) {
        return false;
      }
    }
    if (!fits(p, step)) return false;
  }
  for (size_t k = 0; k < p.results.size(); ++k) {
    const int result = p.results[k];
    if (result < static_cast<int>(p.inputs.size()) || result >= values) return false;
    if (p.outputs[k].dtype() != p.dtype_of(result)) return false;
  }
  return p.inputs.size() + p.outputs.size() <= kMaxFusedOperands &&
         p.steps.size() <= kMaxFusedSteps && p.results.size() == p.outputs.size();
}

bool fused_fits_cuda(const FusedProblem& p) {
  if (!fused_fits(p)) return false;
  std::optional<DType> type;
  for (const FusedStep& step : p.steps) {
    const std::optional<DType> own = arithmetic_of(p, step);
    if (!own || (*own == DType::i64 && is_logical(step))) continue;
    if (*own == DType::i64 || (type && *type != *own)) return false;
    type = own;
  }
  // What the values are held as holds them all.
  for (int v = 0; v < static_cast<int>(p.inputs.size() + p.steps.size()); ++v) {
    const DType dtype = p.dtype_of(v);
    if (dtype == DType::boolean) continue;
    if (!kComputeTypes.contains(dtype) || (dtype == DType::f64 && type == DType::f32)) return false;
  }
  // 48 KiB hold so many f64 of each of 128 threads.
  constexpr int kRegisters = 48;
  return fused_registers(p).count <= kRegisters;
}

FusedRegisters fused_registers(const FusedProblem& p) {
  const int inputs = static_cast<int>(p.inputs.size());
  const int values = inputs + static_cast<int>(p.steps.size());
  std::vector<int> last_use(values, -1), free;
  for (int v = inputs; v < values; ++v) {
    const FusedStep& step = p.steps[v - inputs];
    for (int k = 0; k < operands_of(step); ++k) last_use[step.operands[k]] = v;
  }
  FusedRegisters registers;
  for (int v = 0; v < values; ++v) {
    if (free.empty()) free.push_back(registers.count++);
    registers.of.push_back(free.back());
    free.pop_back();
    if (v < inputs) continue;
    for (int k = 0; k < operands_of(p.steps[v - inputs]); ++k) {
      int& last = last_use[p.steps[v - inputs].operands[k]];
      if (last != v) continue;
      free.push_back(registers.of[p.steps[v - inputs].operands[k]]);
      last = -1;  // an operand may stand twice
    }
  }
  return registers;
}

DType FusedProblem::dtype_of(int value) const {
  const int count = static_cast<int>(inputs.size());
  return value < count ? inputs[value].dtype() : steps[value - count].dtype;
}

std::string FusedProblem::describe() const {
  std::vector<std::string_view> names;
  for (const FusedStep& step : steps) names.push_back(name(step));
  return fmt::format("fused({}; {} inputs to {} of {})", fmt::join(names, " "), inputs.size(),
                     outputs.size(), outputs.empty() ? Tensor() : outputs[0]);
}

}  // namespace weft::kernels
