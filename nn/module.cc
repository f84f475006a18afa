#include "nn/module.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <unordered_set>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/stack_room.h"
#include "nn/meta.h"
#include "nn/stand_in.h"
#include "nn/structure.h"

namespace weft::nn {

thread_local RoutedCall::Call RoutedCall::now_;

namespace {

/// The module that this thread's innermost stand-in is at work for.
const Module*& stood_in_for() {
  thread_local const Module* module = nullptr;
  return module;
}

}  // namespace

bool is_passed_by(const Module& module) {
  return module.has_stand_in() && stood_in_for() != &module;
}

Tensor Module::unrouted(const Tensor& x) {
  require_stack_room("Module");
  // Only the end of a route begins a call: a part that stands in its own way would open it to all.
  std::optional<RoutedCall> call;
  if (route_.forward) call.emplace(this);
  if (!stand_in_) return forward(x);
  const ScopedValue<const Module*> scope(stood_in_for(), this);
  return stand_in_(x);
}

void Module::refuse_strangers() const {
  if (!in_backward()) route_.refuse();
}

Tensor Module::forward(const Tensor&) {
  WEFT_FAIL("Module: this module has no forward of one tensor");
}

ModelStructure Module::structure() { return {}; }

void Module::check_name(std::string_view name) const {
  WEFT_CHECK(!name.empty() && name.find('.') == std::string_view::npos,
             "Module: a name must not be empty or contain a dot, got \"{}\"", name);
  const auto is_taken = [&](const auto& list) {
    return std::ranges::any_of(list, [&](const auto& entry) { return entry.first == name; });
  };
  WEFT_CHECK(!is_taken(parameters_) && !is_taken(buffers_) && !is_taken(children_),
             "Module: \"{}\" is registered already", name);
}

void Module::add_child(std::string_view name, std::shared_ptr<Module> child) {
  check_name(name);
  WEFT_CHECK(child != nullptr, "Module: child \"{}\" is null", name);
  children_.emplace_back(name, std::move(child));
}

void Module::set_child(std::string_view name, std::shared_ptr<Module> child) {
  const auto taken = std::ranges::find(children_, name, [](const auto& c) { return c.first; });
  if (taken == children_.end()) return add_child(name, std::move(child));
  WEFT_CHECK(child != nullptr, "Module: child \"{}\" is null", name);
  taken->second = std::move(child);
}

Tensor Module::parameter(std::string_view name, Tensor tensor) {
  if (!tensor.defined()) return tensor;
  check_name(name);
  tensor.set_requires_grad(true);
  parameters_.emplace_back(name, tensor);
  return tensor;
}

Tensor Module::buffer(std::string_view name, Tensor tensor) {
  if (!tensor.defined()) return tensor;
  check_name(name);
  buffers_.emplace_back(name, tensor);
  return tensor;
}

// However deep the tree, neither this nor a visit recurses: children are taken from a module before
// it goes, unless somebody else keeps it.
Module::~Module() {
  auto pending = std::move(children_);
  while (!pending.empty()) {
    const std::shared_ptr<Module> module = std::move(pending.back().second);
    pending.pop_back();
    if (module.use_count() > 1) continue;
    std::ranges::move(module->children_, std::back_inserter(pending));
    module->children_.clear();
  }
}

/// Calls visitor(prefix, module) for a module and its descendants, each before its children.
template <class Root, class Visit>
void Module::visit(Root& root, Visit&& visitor) {
  std::vector<std::pair<std::string, Root*>> pending = {{"", &root}};
  while (!pending.empty()) {
    const auto [prefix, module] = std::move(pending.back());
    pending.pop_back();
    visitor(prefix, *module);
    for (auto child = module->children_.rbegin(); child != module->children_.rend(); ++child) {
      pending.emplace_back(prefix + child->first + ".", child->second.get());
    }
  }
}

NamedTensors Module::named_parameters() const {
  NamedTensors all;
  std::unordered_set<const void*> seen;
  visit(*this, [&](const std::string& prefix, const Module& module) {
    for (const auto& [name, tensor] : module.parameters_) {
      if (seen.insert(tensor.id()).second) all.emplace_back(prefix + name, tensor);
    }
  });
  return all;
}

Tensors Module::parameters() const {
  Tensors all;
  for (auto& [name, tensor] : named_parameters()) all.push_back(tensor);
  return all;
}

NamedTensors Module::named_buffers() const {
  NamedTensors all;
  visit(*this, [&](const std::string& prefix, const Module& module) {
    for (const auto& [name, tensor] : module.buffers_) all.emplace_back(prefix + name, tensor);
  });
  return all;
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> all;
  visit(*this, [&](const std::string& prefix, Module& module) {
    all.emplace_back(prefix.substr(0, prefix.rfind('.')), &module);
  });
  return all;
}

int64_t Module::num_parameters() const {
  int64_t count = 0;
  for (const Tensor& tensor : parameters()) count += tensor.numel();
  return count;
}

NamedTensors Module::state_dict() const {
  if (route_.state_dict) {
    if (auto state = route_.state_dict()) return *std::move(state);
  }
  return unrouted_state();
}

NamedTensors Module::unrouted_state() const {
  NamedTensors state;
  visit(*this, [&](const std::string& prefix, const Module& module) {
    for (const NamedTensors* list : {&module.parameters_, &module.buffers_}) {
      for (const auto& [name, tensor] : *list) state.emplace_back(prefix + name, tensor.alias());
    }
  });
  return state;
}

void Module::adapt_state(const std::string&, NamedTensors&) const {}

NamedTensors Module::adapted(NamedTensors state) const {
  visit(*this, [&](const std::string& prefix, const Module& module) {
    module.adapt_state(prefix, state);
  });
  return state;
}

LoadResult Module::load_state_dict(const NamedTensors& state, const LoadOptions& options) {
  const NamedTensors source = adapted(state);
  if (route_.load_state_dict) {
    if (auto result = route_.load_state_dict(source, options)) return *std::move(result);
  }
  std::unordered_map<std::string, Tensor> by_name;
  for (const auto& [name, tensor] : source) {
    WEFT_CHECK(tensor.defined(), "load_state_dict: \"{}\" is undefined", name);
    WEFT_CHECK(by_name.emplace(name, tensor).second, "load_state_dict: \"{}\" occurs twice", name);
  }
  LoadResult result;
  std::vector<std::string> mismatches;
  std::vector<std::pair<Tensor, Tensor>> copies;  // from, to
  std::unordered_set<std::string> known;
  for (const auto& [name, target] : unrouted_state()) {
    known.insert(name);
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      result.missing.push_back(name);
    } else if (found->second.shape() != target.shape()) {
      mismatches.push_back(fmt::format("{} (expected {}, got {})", name, to_string(target.shape()),
                                       to_string(found->second.shape())));
    } else {
      copies.emplace_back(found->second, target);
    }
  }
  for (const auto& [name, tensor] : source) {
    if (!known.contains(name)) result.unexpected.push_back(name);
  }

  std::string problems;
  const auto report = [&](std::string_view what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    problems += fmt::format("{}{}: {}", problems.empty() ? "" : "; ", what, fmt::join(names, ", "));
  };
  if (options.strict) {
    report("missing keys", result.missing);
    report("unexpected keys", result.unexpected);
  }
  report("shape mismatches", mismatches);
  WEFT_CHECK(problems.empty(), "load_state_dict: {}", problems);

  const NoGrad guard;
  for (auto& [from, to] : copies) ops::copy_(to, ops::to(from, to.device()));
  return result;
}

Module& Module::train(bool mode) {
  visit(*this, [mode](const std::string&, Module& module) { module.training_ = mode; });
  return *this;
}

template <class Convert>
void Module::convert(Convert&& converted) {
  const NoGrad guard;
  for (Tensor& tensor : parameters()) {
    const Tensor gradient = tensor.grad();
    tensor.set_data(converted(tensor));
    if (gradient.defined()) tensor.set_grad(converted(gradient));
  }
  for (auto& [name, tensor] : named_buffers()) tensor.set_data(converted(tensor));
}

Module& Module::to(Device device) {
  convert([&](const Tensor& x) {
    return has_memory(x) ? ops::to(x, device) : meta(x.shape(), x.dtype(), device);
  });
  return *this;
}

Module& Module::to(DType dtype) {
  WEFT_CHECK(is_floating(dtype), "Module::to: expected a floating dtype, got {}", dtype);
  convert([&](const Tensor& x) {
    if (!is_floating(x.dtype()) || x.dtype() == dtype) return x;
    return has_memory(x) ? ops::cast(x, dtype) : meta(x.shape(), dtype, x.device());
  });
  return *this;
}

void Module::zero_grad() {
  if (route_.zero_grad) route_.zero_grad();
  for (const Tensor& tensor : parameters()) {
    if (tensor.grad().defined()) tensor.set_grad({});
  }
}

Module& Module::requires_grad_(bool value) {
  for (Tensor& tensor : parameters()) tensor.set_requires_grad(value);
  return *this;
}

}  // namespace weft::nn
