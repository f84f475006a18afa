#include "optim/optimizer.h"

#include "optim/optimizer_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "autograd/ops.h"
#include "core/memory_account.h"
#include "core/scoped_value.h"
#include "core/transfer.h"
#include "io/json_field.h"
#include "io/nearest.h"
#include "kernels/op.h"
#include "optim/capture.h"
#include "optim/gradient_owner.h"

namespace weft::optim {

double& ParameterGroup::operator[](std::string_view option) {
  const auto found = options.find(option);
  WEFT_CHECK(found != options.end(), "optimizer: no option \"{}\"", option);
  return found->second;
}

double ParameterGroup::operator[](std::string_view option) const {
  return const_cast<ParameterGroup&>(*this)[option];
}

ParameterGroups::ParameterGroups(const NamedTensors& parameters) : vector(1) {
  front().parameters = parameters;
}

ParameterGroups::ParameterGroups(const Tensors& parameters) : vector(1) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    front().parameters.emplace_back(std::to_string(i), parameters[i]);
  }
}

ParameterGroups without_decay_of_vectors(const NamedTensors& parameters,
                                         const std::vector<std::string>& exempt) {
  ParameterGroup decayed, others;
  for (const auto& [name, tensor] : parameters) {
    const bool is_exempt = std::ranges::find(exempt, name) != exempt.end();
    (tensor.dim() < 2 || is_exempt ? others : decayed).parameters.emplace_back(name, tensor);
  }
  others.options["weight_decay"] = 0;
  return {decayed, others};
}

void Optimizer::add_group(ParameterGroup group) {
  WEFT_CHECK(!has_route(), "{}: add_group() comes before the optimizer is set up", kind_);
  for (const auto& [option, value] : group.options) {
    if (defaults_.contains(option)) continue;
    std::vector<std::string> known;
    for (const auto& [name, usual] : defaults_) known.push_back(name);
    WEFT_FAIL("{}: unknown option \"{}\"{}", kind_, option, io::did_you_mean(option, known));
  }
  group.options.insert(defaults_.begin(), defaults_.end());
  check(group);
  std::set<const void*> ids;
  std::set<std::string> names;
  for (const ParameterGroup& other : groups_) {
    for (const auto& [name, tensor] : other.parameters) {
      ids.insert(tensor.id());
      names.insert(name);
    }
  }
  for (const auto& [name, tensor] : group.parameters) {
    WEFT_CHECK(tensor.defined(), "{}: parameter \"{}\" is undefined", kind_, name);
    WEFT_CHECK(!tensor.autograd() || !tensor.autograd()->grad_fn,
               "{}: parameter \"{}\" is the result of a recorded op, not a leaf", kind_, name);
    WEFT_CHECK(ids.insert(tensor.id()).second && names.insert(name).second,
               "{}: parameter \"{}\" appears twice", kind_, name);
  }
  groups_.push_back(std::move(group));
}

void Optimizer::check_range(const ParameterGroup& group, std::string_view option, double low,
                            std::optional<double> high) const {
  const double value = group[option];
  if (value >= low && (!high || value < *high)) return;
  WEFT_CHECK(high, "{}: {} must be at least {}, got {}", kind_, option, low, value);
  WEFT_FAIL("{}: {} must lie in [{}, {}), got {}", kind_, option, low, *high, value);
}

std::vector<double> Optimizer::learning_rates() const {
  std::vector<double> rates;
  for (const ParameterGroup& group : groups_) rates.push_back(group["lr"]);
  return rates;
}

Tensors Optimizer::parameters() const {
  Tensors all;
  for (const ParameterGroup& group : groups_) {
    for (const auto& [name, tensor] : group.parameters) all.push_back(tensor);
  }
  return all;
}

int64_t Optimizer::state_tensors() const {
  int64_t most = 0;
  for (const ParameterGroup& group : groups_) most = std::max(most, std::ssize(state_names(group)));
  return most;
}

double Optimizer::lr() const {
  WEFT_CHECK(!groups_.empty(), "{}: no parameters", kind_);
  return groups_[0]["lr"] / groups_[0].lr_scale;
}

void Optimizer::set_lr(double lr) {
  for (ParameterGroup& group : groups_) group["lr"] = lr * group.lr_scale;
}

/// Alone, an optimizer would take gradients that still carry a loss scale, or those of a model of
/// which this rank has a part.
void Optimizer::check_alone(const char* function) const {
  WEFT_CHECK(is_on_route_ || !has_gradient_owner(parameters()),
             "{}: {}() on parameters of a model that was set up, without the optimizer; expected "
             "fabric.setup(model, optimizer)",
             kind_, function);
}

void Optimizer::zero_grad() {
  if (route_.zero_grad && !is_on_route_) {
    const ScopedValue on_route(is_on_route_, true);
    return route_.zero_grad();
  }
  check_alone("zero_grad");
  for (const Tensor& tensor : parameters()) {
    if (tensor.grad().defined()) tensor.set_grad({});
  }
}

Optimizer::ParameterState& Optimizer::state_of(const ParameterGroup& group, const Tensor& parameter,
                                               bool captured) {
  ParameterState& state = states_[parameter.id()];
  const size_t count = state_names(group).size();
  if (state.tensors.size() != count) {
    // A graph would set it to zero again at every launch.
    WEFT_CHECK(!captured, "{}: take a step before the one that is captured: it makes the state",
               kind_);
    state = {};
    const MemoryScope scope(MemoryKind::kOptimizer);
    for (size_t i = 0; i < count; ++i) state.tensors.push_back(ops::zeros_like(parameter));
  }
  return state;
}

bool Optimizer::step(double gradient_scale, const kernels::StepGate& gate) {
  if (!route_.step || is_on_route_) {
    check_alone("step");
    take_step(gradient_scale, gate);
    return true;
  }
  for (const Tensor& parameter : parameters()) {
    WEFT_CHECK(!is_capturing(parameter.device()),
               "{}: a step that was set up for several devices or a precision cannot be captured",
               kind_);
  }
  const ScopedValue on_route(is_on_route_, true);
  was_skipped_ = !route_.step(gradient_scale, gate);
  return !was_skipped_;
}

/// A gate that kernels of this optimizer can read where it lies.
bool Optimizer::opens_itself(const kernels::StepGate& gate) const {
  if (!is_fused()) return false;
  return std::ranges::all_of(parameters(), [&](const Tensor& p) {
    const auto is_beside = [&](const Tensor& x) {
      return !x.defined() || x.device() == p.device();
    };
    return is_beside(gate.skip) && is_beside(gate.norm);
  });
}

void Optimizer::take_step(double gradient_scale, kernels::StepGate gate) {
  const NoGrad guard;
  has_advanced_ = false;
  latest_.clear();
  if (gate.is_given() && !opens_itself(gate)) {
    for (const Tensor& parameter : parameters()) {
      WEFT_CHECK(!is_capturing(parameter.device()),
                 "{}: a captured step cannot be skipped, as fp16's loss scale asks for", kind_);
    }
    for (Tensor* tensor : {&gate.skip, &gate.norm}) {
      if (tensor->defined()) *tensor = to_device(*tensor, Device{});
    }
    const kernels::OpenedGate opened(gate);
    if (opened.is_closed()) return;
    gradient_scale *= opened.coefficient();
    gate = {};
  }
  const bool captured_before = !captured_.empty();
  for (size_t index = 0; index < groups_.size(); ++index) {
    const ParameterGroup& group = groups_[index];
    check(group);
    std::map<std::tuple<DType, DeviceType, int, int64_t>, Batch> batches;
    for (const auto& [name, parameter] : group.parameters) {
      const Tensor gradient = parameter.grad();
      if (!gradient.defined()) continue;
      WEFT_CHECK(kernels::kComputeTypes.contains(parameter.dtype()),
                 "{}: parameter \"{}\" is {}; expected f64, f32, bf16 or f16 (for narrower matrix "
                 "products keep f32 weights and use Autocast)",
                 kind_, name, parameter);
      WEFT_CHECK(parameter.is_contiguous(), "{}: parameter \"{}\" is not contiguous", kind_, name);
      WEFT_CHECK(gradient.shape() == parameter.shape() && gradient.dtype() == parameter.dtype() &&
                     gradient.device() == parameter.device(),
                 "{}: the gradient of \"{}\", {}, does not fit the parameter, {}", kind_, name,
                 gradient, parameter);
      const Device device = parameter.device();
      const bool captured = is_capturing(device);
      WEFT_CHECK(!captured || !captured_before, "{}: a step is captured once", kind_);
      ParameterState& state = state_of(group, parameter, captured);
      for (const Tensor& tensor : state.tensors) {
        WEFT_CHECK(tensor.shape() == parameter.shape() && tensor.dtype() == parameter.dtype() &&
                       tensor.device() == parameter.device(),
                   "{}: parameter \"{}\" became {} after steps as {}", kind_, name, parameter,
                   tensor);
      }
      const int64_t step = state.step + 1;
      if (!captured) {
        state.step = step;
        latest_.push_back(parameter.id());
      }
      Batch& batch = batches[{parameter.dtype(), device.type, device.index, step}];
      batch.step = step;
      batch.parameters.push_back(parameter);
      batch.gradients.push_back(gradient);
      batch.state.resize(state.tensors.size());
      for (size_t i = 0; i < state.tensors.size(); ++i) batch.state[i].push_back(state.tensors[i]);
    }
    for (auto& [key, batch] : batches) {
      const Device device = batch.parameters[0].device();
      batch.gate = gate;
      const bool captured = is_capturing(device);
      // What a capture allocates is its graph's. On a CPU a cast costs little beside the products,
      // and copies that outlive the backward pass would lie there when memory is at its most.
      if (is_fused() && device.type != DeviceType::cpu) {
        batch.narrow = narrow_.of(batch.parameters, !captured);
      }
      if (captured) {
        const Tensor constants = this->constants(group, batch, gradient_scale);
        if (constants.defined()) {
          batch.constants = empty_beside_capture(constants.shape(), constants.dtype(), device);
        }
        captured_.push_back({index, batch, group.options, gradient_scale});
        captured_.back().batch.gradients.clear();  // they are the graph's
        --captured_.back().batch.step;
      }
      update(group, batch, gradient_scale);
      for (const Tensor& parameter : batch.parameters) parameter.bump_version();
      narrow_.set_written(batch.parameters, batch.narrow);
    }
  }
}

void Optimizer::advance(double gradient_scale) {
  WEFT_CHECK(!captured_.empty(), "{}: advance() without a step inside DeviceGraph::capture()",
             kind_);
  has_advanced_ = true;
  latest_.clear();
  for (Captured& captured : captured_) {
    const ParameterGroup& group = groups_[captured.group];
    Batch& batch = captured.batch;
    check(group);
    // Steps may have been taken outside of the graph, too.
    const auto steps_of = [&](const Tensor& parameter) {
      const auto state = states_.find(parameter.id());
      return state == states_.end() ? 0 : state->second.step;
    };
    batch.step = steps_of(batch.parameters.front());
    for (const Tensor& parameter : batch.parameters) {
      WEFT_CHECK(steps_of(parameter) == batch.step,
                 "{}: parameters of one captured step have taken {} and {} steps by now", kind_,
                 batch.step, steps_of(parameter));
    }
    ++batch.step;
    // The launch reads them before it writes them.
    if (is_fused()) narrow_.of(batch.parameters, false);
    const Tensor constants = this->constants(group, batch, gradient_scale);
    if (constants.defined()) {
      copy_same_layout(constants, batch.constants);
    } else {
      WEFT_CHECK(group.options == captured.options && gradient_scale == captured.gradient_scale,
                 "{}: options and gradient scale of a captured step stay what they were", kind_);
    }
    for (const Tensor& parameter : batch.parameters) {
      states_.at(parameter.id()).step = batch.step;
      parameter.bump_version();
    }
    narrow_.set_written(batch.parameters, batch.narrow);
  }
}

void Optimizer::retract() {
  for (const void* id : latest_) {
    // A first step that was none has made no state.
    if (--states_.at(id).step == 0) states_.erase(id);
  }
  latest_.clear();
  if (!std::exchange(has_advanced_, false)) return;
  for (Captured& captured : captured_) {
    Batch& batch = captured.batch;
    --batch.step;
    for (const Tensor& parameter : batch.parameters) {
      states_.at(parameter.id()).step = batch.step;
    }
  }
}

OptimizerState Optimizer::state_dict() const {
  OptimizerState result;
  result.groups = {{"kind", kind_}, {"groups", nlohmann::json::array()}};
  for (const ParameterGroup& group : groups_) {
    nlohmann::json names = nlohmann::json::array();
    const std::vector<std::string> kinds = state_names(group);
    for (const auto& [name, parameter] : group.parameters) {
      names.push_back(name);
      const auto found = states_.find(parameter.id());
      if (found == states_.end() || found->second.tensors.size() != kinds.size()) continue;
      for (size_t i = 0; i < kinds.size(); ++i) {
        result.tensors.emplace_back(name + "." + kinds[i], found->second.tensors[i]);
      }
      result.tensors.emplace_back(name + ".step",
                                  Tensor::from(std::vector{found->second.step}, {}));
    }
    result.groups["groups"].push_back({{"options", group.options}, {"parameters", names}});
  }
  return result;
}

void Optimizer::load_state_dict(const OptimizerState& state) {
  WEFT_CHECK(captured_.empty(), "{}: a state is loaded before a step is captured, not after",
             kind_);
  std::vector<ParameterGroup> groups = groups_;
  const auto read = [&](const nlohmann::json& object, const std::string& key, auto& value) {
    try {
      io::read_field(object, key, value);
    } catch (const Error& e) {
      WEFT_FAIL("{}: malformed state: {}", kind_, e.what());
    }
  };
  std::string kind;
  read(state.groups, "kind", kind);
  WEFT_CHECK(kind == kind_, "{}: the state is that of {}", kind_, kind);
  using Fields = nlohmann::json::object_t;
  std::vector<Fields> saved;
  read(state.groups, "groups", saved);
  WEFT_CHECK(saved.size() == groups.size(), "{}: expected {} parameter groups, the state has {}",
             kind_, groups.size(), saved.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    std::vector<std::string> names;
    read(saved[i], "parameters", names);
    for (size_t j = 0; j < std::max(names.size(), groups[i].parameters.size()); ++j) {
      const std::string ours =
          j < groups[i].parameters.size() ? groups[i].parameters[j].first : "none";
      const std::string theirs = j < names.size() ? names[j] : "none";
      WEFT_CHECK(ours == theirs,
                 "{}: parameter {} of group {} is \"{}\", in the state it is \"{}\"", kind_, j, i,
                 ours, theirs);
    }
    Fields options;
    read(saved[i], "options", options);
    for (auto& [option, value] : groups[i].options) read(options, option, value);
    check(groups[i]);
  }

  std::unordered_map<std::string, Tensor> by_name(state.tensors.begin(), state.tensors.end());
  std::unordered_map<const void*, ParameterState> states;
  size_t used = 0;
  for (const ParameterGroup& group : groups) {
    for (const auto& [name, parameter] : group.parameters) {
      const auto step = by_name.find(name + ".step");
      if (step == by_name.end()) continue;  // it never had a gradient
      ++used;
      ParameterState& entry = states[parameter.id()];
      entry.step = static_cast<int64_t>(step->second.item());
      for (const std::string& kind : state_names(group)) {
        const auto found = by_name.find(name + "." + kind);
        WEFT_CHECK(found != by_name.end(), "{}: the state lacks \"{}.{}\"", kind_, name, kind);
        WEFT_CHECK(found->second.shape() == parameter.shape(),
                   "{}: \"{}.{}\" in the state is {}, expected shape {}", kind_, name, kind,
                   found->second, parameter.shape());
        ++used;
        Tensor copy = ops::zeros_like(parameter);
        const NoGrad guard;
        ops::copy_(copy, ops::to(found->second, parameter.device()));
        entry.tensors.push_back(copy);
      }
    }
  }
  for (const auto& [name, tensor] : state.tensors) {
    const std::string parameter = name.substr(0, name.rfind('.'));
    WEFT_CHECK(by_name.contains(parameter + ".step"), "{}: unexpected \"{}\" in the state", kind_,
               name);
  }
  WEFT_CHECK(used == by_name.size(), "{}: the state holds tensors of other parameters", kind_);
  groups_ = std::move(groups);
  states_ = std::move(states);
}

}  // namespace weft::optim
