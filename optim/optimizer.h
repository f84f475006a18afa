// Optimizers: parameter groups, the state of each parameter, and one update per step.
//
//   optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-3});
//   ...
//   optimizer.zero_grad();
//   backward(loss);
//   optim::clip_grad_norm(model.parameters(), 1.0);
//   optimizer.step();
//
// A step calls one kernel for all parameters of a group that stand at the same step count.
// Parameters without a gradient are skipped, state and all.
//
// A step can be part of a captured graph (core/graph.h), after one that was not and made the state.
// The capture counts no step; advance() does, before each launch:
//
//   train_step();                                   // zero_grad, forward, backward, step
//   graph.capture(train_step);
//   for (...) { optimizer.set_lr(...); optimizer.advance(); graph.launch(); }
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "autograd/narrow_copies.h"
#include "autograd/tape.h"
#include "kernels/multi_tensor/step_gate.h"

namespace weft::optim {

/// Hyperparameters by PyTorch's names: "lr", "weight_decay", "momentum", ...; flags are 0 or 1.
using Options = std::map<std::string, double, std::less<>>;

struct ParameterGroup {
  NamedTensors parameters;
  Options options = {};  // those left out take the optimizer's
  double lr_scale = 1;   // of set_lr's rate

  /// An option; throws Error naming it when the optimizer has none of that name.
  double& operator[](std::string_view option);
  double operator[](std::string_view option) const;
};

/// Groups from whatever the caller has. Tensors without names are called "0", "1", ...
struct ParameterGroups : std::vector<ParameterGroup> {
  ParameterGroups(const Tensors& parameters);
  ParameterGroups(const NamedTensors& parameters);
  ParameterGroups(std::vector<ParameterGroup> groups) : vector(std::move(groups)) {}
  ParameterGroups(std::initializer_list<ParameterGroup> groups) : vector(groups) {}
};

/// Two groups: matrices and larger, and, without weight decay, vectors and scalars (biases and the
/// weights of normalisations) and those named in `exempt`.
ParameterGroups without_decay_of_vectors(const NamedTensors& parameters,
                                         const std::vector<std::string>& exempt = {});

struct OptimizerState;  // optim/optimizer_state.h

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One update. Gradients are multiplied by gradient_scale on the way: a clipping coefficient, or
  /// the inverse of a loss scale, at no extra pass over memory. A gate decides besides, where the
  /// step runs: nobody waits for it, and the step counts; who learns that the gate was closed calls
  /// retract(). Optimizers whose kernels heed none, and gates on another device, wait.
  /// False when the step was left out, which only a route does. Throws Error where its parameters'
  /// model was set up without it (train/fabric.h), and so does zero_grad().
  bool step(double gradient_scale = 1, const kernels::StepGate& gate = {});
  /// Whether the latest step() was left out: a schedule then stays where it is.
  bool was_skipped() const { return was_skipped_; }
  /// Counts the captured step and brings the groups' options, as they are now, to the device.
  /// Throws Error without a captured step, and, for optimizers whose kernels cannot read them there
  /// (SGD), when an option or the scale is no longer what it was at the capture.
  void advance(double gradient_scale = 1);
  /// Takes the count of the last step() or advance() back: its gate was closed. Nothing where
  /// step() has waited, and has seen that itself.
  void retract();
  /// Drops the gradients: they are undefined until the next backward.
  void zero_grad();

  /// What becomes of a program's own calls of an optimizer that was set up with its model
  /// (train/fabric.h). While one of these runs, step() and zero_grad() are the optimizer's own.
  struct Route {
    std::function<bool(double gradient_scale, const kernels::StepGate& gate)> step;
    std::function<void()> zero_grad;
  };
  void set_route(Route route) { route_ = std::move(route); }
  bool has_route() const { return route_.step != nullptr; }

  /// Throws Error for unknown options, values outside their range, a parameter given twice, and of
  /// an optimizer that was set up, whose parameters are what a device keeps of the model's.
  void add_group(ParameterGroup group);
  std::vector<ParameterGroup>& groups() { return groups_; }
  const std::vector<ParameterGroup>& groups() const { return groups_; }
  /// Of each group.
  std::vector<double> learning_rates() const;
  Tensors parameters() const;
  /// Options with the values of groups that say nothing of them.
  const Options& defaults() const { return defaults_; }
  /// "AdamW"
  const std::string& kind() const { return kind_; }
  /// Tensors as large as a parameter that are kept for each, at most.
  int64_t state_tensors() const;

  /// Whether an update of a part of a parameter is not that part of the update: strategies that cut
  /// parameters then refuse the optimizer.
  virtual bool needs_whole_parameters() const { return false; }
  /// Whether there is state to carry from step to step.
  bool has_stepped() const { return !states_.empty(); }

  /// The rate whose lr_scale-fold the first group learns at.
  double lr() const;
  /// Gives every group its lr_scale-fold.
  void set_lr(double lr);

  /// Handles on the state; clone them to keep a state beyond the next step.
  OptimizerState state_dict() const;
  /// Copies a state of an optimizer of the same kind on parameters of the same names and shapes.
  /// Throws Error, and changes nothing, otherwise.
  void load_state_dict(const OptimizerState& state);

 protected:
  /// Parameters that are updated together, with their state tensors in the order of state_names().
  struct Batch {
    Tensors parameters, gradients;
    std::vector<Tensors> state;
    int64_t step = 0;        // this step's number, from 1
    Tensor constants;        // of a captured step: on the device, what constants() gives
    Tensors narrow;          // if is_fused(): of each parameter its copy, or undefined
    kernels::StepGate gate;  // what step() was given, if is_fused()

    /// Of parameter i alone.
    Tensors narrow_of(size_t i) const { return {narrow.empty() ? Tensor() : narrow[i]}; }
  };

  Optimizer(std::string kind, Options defaults) : kind_(std::move(kind)), defaults_(defaults) {}
  void add_groups(const ParameterGroups& groups) {
    for (const ParameterGroup& group : groups) add_group(group);
  }

  virtual void check(const ParameterGroup& group) const = 0;
  virtual std::vector<std::string> state_names(const ParameterGroup& group) const = 0;
  virtual void update(const ParameterGroup& group, const Batch& batch, double gradient_scale) = 0;
  /// What the kernel of a captured update() reads from the device when it runs, on the CPU;
  /// undefined where it keeps the options of the capture.
  virtual Tensor constants(const ParameterGroup&, const Batch&, double) const { return {}; }
  /// Whether update() heeds Batch::gate, and leaves the parameters' rounded values in
  /// Batch::narrow.
  virtual bool is_fused() const { return false; }

  /// Throws Error naming the option unless low <= value (and value < high).
  void check_range(const ParameterGroup& group, std::string_view option, double low,
                   std::optional<double> high = {}) const;

 private:
  struct ParameterState {
    int64_t step = 0;
    Tensors tensors;
  };

  /// A batch of the step that was captured.
  struct Captured {
    size_t group;
    Batch batch;
    Options options;
    double gradient_scale;
  };

  void check_alone(const char* function) const;
  bool opens_itself(const kernels::StepGate& gate) const;
  void take_step(double gradient_scale, kernels::StepGate gate);
  ParameterState& state_of(const ParameterGroup& group, const Tensor& parameter, bool captured);

  std::string kind_;
  Options defaults_;
  std::vector<ParameterGroup> groups_;
  std::unordered_map<const void*, ParameterState> states_;  // by Tensor::id()
  std::vector<Captured> captured_;
  NarrowCopies narrow_;  // if is_fused()
  // What retract() takes back: the latest advance(), or the states that the latest step() counted.
  bool has_advanced_ = false;
  std::vector<const void*> latest_;
  Route route_;
  bool is_on_route_ = false;
  bool was_skipped_ = false;
};

}  // namespace weft::optim
