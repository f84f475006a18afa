#include "autograd/deferral.h"

#include <algorithm>
#include <utility>

#include "core/view.h"
#include "kernels/copy/copy.h"
#include "kernels/where/where.h"

namespace weft {

using kernels::BinaryOp;
using kernels::FusedProblem;
using kernels::FusedStep;
using kernels::MoveOp;
using kernels::UnaryOp;

Tensor Deferral::defer(const FusedStep& step, const Tensors& operands, const Shape& shape) {
  const std::lock_guard lock(mutex_);
  Value value = {.step = step, .operands = {}, .shape = shape, .device = operands[0].device()};
  for (const Tensor& x : operands) value.operands.push_back(operand_of(x));
  const int index = static_cast<int>(values_.size());
  const auto storage = std::make_shared<Storage>(
      nbytes(shape, step.dtype), value.device, [weak = weak_from_this(), index] {
        const std::shared_ptr<Deferral> deferral = weak.lock();
        WEFT_CHECK(deferral, "fused: a tensor of a function that failed was never computed");
        deferral->touch(index);
      });
  value.handle = storage;
  by_storage_[storage.get()] = index;
  values_.push_back(std::move(value));
  return Tensor::view_of(storage, shape, contiguous_strides(shape), 0, step.dtype);
}

int Deferral::value_of(const Tensor& x) const {
  const auto entry = by_storage_.find(x.storage().get());
  if (entry == by_storage_.end()) return -1;
  const Value& value = values_[entry->second];
  // The storage may be another one at an old one's address, and x may be a view.
  const bool is_whole = value.handle.lock() == x.storage() && x.shape() == value.shape &&
                        x.dtype() == value.step.dtype && x.is_contiguous() && x.offset() == 0;
  return is_whole && x.version() == 0 ? entry->second : -1;
}

Deferral::Operand Deferral::operand_of(const Tensor& x) const {
  if (const int value = value_of(x); value >= 0) return {.value = value};
  x.raw();  // a view of a deferred result is computed here
  return {.value = -1, .tensor = x.alias(), .version = x.version()};
}

const Tensor& Deferral::memory_of(int index) {
  Value& value = values_[index];
  if (!value.memory.defined()) {
    value.memory = Tensor::empty(value.shape, value.step.dtype, value.device);
  }
  return value.memory;
}

void Deferral::publish(int index) {
  Value& value = values_[index];
  value.computed = true;
  const std::shared_ptr<Storage> storage = value.handle.lock();
  if (!storage) return;
  storage->take(*value.memory.storage());
  value.memory =
      Tensor::view_of(storage, value.shape, contiguous_strides(value.shape), 0, value.step.dtype);
}

Tensor Deferral::elements_of(const Operand& operand, const Shape& shape) const {
  if (operand.value >= 0) return view::expand(values_[operand.value].memory, shape);
  WEFT_CHECK(operand.tensor.version() == operand.version,
             "fused: {} was changed in place while ops on it were waiting to be computed",
             operand.tensor);
  return view::expand(operand.tensor, shape);
}

void Deferral::touch(int value) {
  const std::lock_guard lock(mutex_);
  compute({value});
}

void Deferral::flush() {
  const std::lock_guard lock(mutex_);
  compute(with_handles());
}

void Deferral::finish(Tensors& results) {
  const std::lock_guard lock(mutex_);
  const std::vector<int> wanted = with_handles();
  std::vector<std::pair<Tensor*, int>> owned;
  for (Tensor& result : results) {
    const int value = result.defined() && result.is_unique() ? value_of(result) : -1;
    if (value < 0 || values_[value].memory.defined()) continue;
    values_[value].handle.reset();
    owned.emplace_back(&result, value);
  }
  compute(wanted);
  for (const auto& [result, value] : owned) *result = values_[value].memory;
  values_.clear();
  by_storage_.clear();
}

std::vector<int> Deferral::with_handles() const {
  std::vector<int> values;
  for (int v = 0; v < static_cast<int>(values_.size()); ++v) {
    if (!values_[v].handle.expired()) values.push_back(v);
  }
  return values;
}

std::vector<int> Deferral::needed_for(const std::vector<int>& values) const {
  std::vector<bool> needed(values_.size());
  for (int v : values) needed[v] = true;
  std::vector<int> result;
  for (int v = static_cast<int>(values_.size()) - 1; v >= 0; --v) {
    if (!needed[v] || values_[v].computed) continue;
    result.push_back(v);
    for (const Operand& operand : values_[v].operands) {
      if (operand.value >= 0) needed[operand.value] = true;
    }
  }
  std::ranges::reverse(result);
  return result;
}

void Deferral::compute(std::vector<int> values) {
  while (true) {
    std::erase_if(values, [&](int v) { return values_[v].computed; });
    if (values.empty()) return;
    const Value& first = values_[values[0]];
    std::vector<int> alike;
    for (int v : values) {
      const Value& value = values_[v];
      if (value.shape == first.shape && value.device == first.device) alike.push_back(v);
    }
    compute_alike(alike);
  }
}

void Deferral::compute_alike(const std::vector<int>& values) {
  const Shape shape = values_[values[0]].shape;
  std::vector<int> needed = needed_for(values);
  // What is broadcast is computed once, at its own size.
  std::vector<int> others;
  std::ranges::copy_if(needed, std::back_inserter(others),
                       [&](int v) { return values_[v].shape != shape; });
  compute(others);
  needed = needed_for(values);
  if (needed.size() == 1) return compute_alone(needed[0]);
  const FusedProblem program =
      needed.size() <= kernels::kMaxFusedSteps ? program_of(needed, values) : FusedProblem();
  const size_t operands = program.inputs.size() + values.size();
  if (program.steps.empty() || operands > kernels::kMaxFusedOperands) {
    // Half of it first.
    const auto middle = needed.begin() + static_cast<int64_t>(needed.size()) / 2;
    compute(values.size() > 8 ? std::vector(values.begin(), values.begin() + 8)
                              : std::vector{*(middle - 1)});
    return compute(values);
  }
  FusedProblem problem = program;
  for (int v : values) problem.outputs.push_back(memory_of(v));
  const auto& variants = kernels::fused_op().variants;
  if (!std::ranges::any_of(variants, [&](const auto& row) { return takes(row, problem); })) {
    for (int v : needed) compute_alone(v);
    return;
  }
  kernels::fused(problem);
  for (int v : values) publish(v);
}

FusedProblem Deferral::program_of(const std::vector<int>& needed, const std::vector<int>& values) {
  FusedProblem p;
  const Shape& shape = values_[values[0]].shape;
  const auto place_of = [&](int v) {
    return static_cast<int>(std::ranges::lower_bound(needed, v) - needed.begin());
  };
  // Inputs first, since the steps count on from them.
  std::vector<std::vector<int>> inputs_of;  // of each step's operands; -1: a step's value
  for (int v : needed) {
    inputs_of.emplace_back();
    for (const Operand& operand : values_[v].operands) {
      inputs_of.back().push_back(-1);
      if (operand.value >= 0 && !values_[operand.value].computed) continue;
      const Tensor x = elements_of(operand, shape);
      const auto same = std::ranges::find_if(p.inputs, [&](const Tensor& other) {
        return other.storage() == x.storage() && other.offset() == x.offset() &&
               other.strides() == x.strides() && other.dtype() == x.dtype();
      });
      inputs_of.back().back() = static_cast<int>(same - p.inputs.begin());
      if (same == p.inputs.end()) p.inputs.push_back(x);
    }
  }
  const int inputs = static_cast<int>(p.inputs.size());
  for (size_t i = 0; i < needed.size(); ++i) {
    const Value& value = values_[needed[i]];
    p.steps.push_back(value.step);
    for (size_t k = 0; k < value.operands.size(); ++k) {
      const int input = inputs_of[i][k];
      p.steps.back().operands[k] = input >= 0 ? input : inputs + place_of(value.operands[k].value);
    }
  }
  for (int v : values) p.results.push_back(inputs + place_of(v));
  return p;
}

void Deferral::compute_alone(int index) {
  Value& value = values_[index];
  const FusedStep& step = value.step;
  Tensors x;
  for (const Operand& operand : value.operands) x.push_back(elements_of(operand, value.shape));
  const Tensor& y = memory_of(index);
  if (const auto* unary = std::get_if<UnaryOp>(&step.op)) {
    kernels::unary({.op = *unary, .x = x[0], .y = y, .alpha = step.alpha});
  } else if (const auto* binary = std::get_if<BinaryOp>(&step.op)) {
    kernels::binary({.op = *binary, .a = x[0], .b = x[1], .y = y, .alpha = step.alpha});
  } else if (std::get<MoveOp>(step.op) == MoveOp::kWhere) {
    kernels::where({.condition = x[0], .a = x[1], .b = x[2], .y = y});
  } else {
    kernels::copy({.x = x[0], .y = y});
  }
  publish(index);
}

}  // namespace weft
