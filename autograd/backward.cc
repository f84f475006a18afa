#include "autograd/backward.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "autograd/deferral.h"
#include "autograd/op_hook.h"
#include "autograd/ops.h"
#include "autograd/raw.h"
#include "autograd/stack_room.h"
#include "core/memory_account.h"

namespace weft {
namespace {

/// Tells the op hook that a node runs, for as long as it does.
class HookedNode {
 public:
  explicit HookedNode(const Node& node) : hook_(op_hook()) {
    if (hook_) [[unlikely]]
      hook_->begin_backward(node.name);
  }
  ~HookedNode() {
    if (hook_) [[unlikely]]
      hook_->end_backward();
  }

 private:
  OpHook* hook_;
};

/// A gradient on its way: the first contribution is held as it came, later ones are added to a
/// buffer of our own.
struct Accumulator {
  Tensor value;
  bool owned = false;

  void add(Tensor gradient, bool create_graph) {
    if (!value.defined()) {
      value = std::move(gradient);
    } else if (create_graph || !owned || deferral_in_force) {
      value = ops::add(value, gradient);
      owned = !create_graph;
    } else {
      ops::add_(value, gradient);
    }
  }
};

/// A leaf met in this pass: contributions still to come, and what has arrived.
struct LeafState {
  std::shared_ptr<AutogradMeta> meta;
  int pending = 0;
  Accumulator gradient;
};

struct NodeState {
  std::shared_ptr<Node> node;
  std::vector<Accumulator> gradients;  // one per output
  bool needed = true;
};

/// What a hook makes of a gradient.
void replace(Tensor& gradient, Tensor by, std::string_view whose) {
  if (!by.defined()) return;
  WEFT_CHECK(by.shape() == gradient.shape() && by.dtype() == gradient.dtype() &&
                 by.device() == gradient.device(),
             "register_hook: a hook of {} returned {} for the gradient {}", whose, by, gradient);
  gradient = std::move(by);
}

class Pass;

/// The passes running on this thread, one inside the other where activations are recomputed, the
/// nodes whose gradient functions they are in, and what is to follow the outermost.
struct RunningPasses {
  int depth = 0;
  Pass* innermost = nullptr;
  std::vector<const Node*> nodes;
  std::vector<std::function<void()>> afterwards;
};

thread_local RunningPasses running;

/// While a gradient function runs, a pass that it begins must not come to its node, and free it.
class RunningNode {
 public:
  explicit RunningNode(const Node& node) {
    WEFT_CHECK(std::ranges::find(running.nodes, &node) == running.nodes.end(),
               "{}: its gradient function ran backward through itself", node.name);
    running.nodes.push_back(&node);
  }
  ~RunningNode() { running.nodes.pop_back(); }
  RunningNode(const RunningNode&) = delete;
  RunningNode& operator=(const RunningNode&) = delete;
};

class Pass {
 public:
  Pass(const Tensors& roots, const Tensors& gradients, const BackwardOptions& options)
      : options_(options) {
    for (size_t i = 0; i < roots.size(); ++i) {
      WEFT_CHECK(roots[i].defined() && roots[i].requires_grad(),
                 "backward: {} does not require a gradient and has no history", roots[i]);
      Tensor gradient = i < gradients.size() ? gradients[i] : Tensor();
      if (!gradient.defined()) {
        WEFT_CHECK(roots[i].numel() == 1,
                   "backward: a root of several elements, {}, needs a gradient of its shape",
                   roots[i]);
        gradient = ops::full_like(roots[i], 1);
      }
      WEFT_CHECK(gradient.shape() == roots[i].shape(),
                 "backward: the gradient {} does not have the shape of the root {}", gradient,
                 roots[i]);
      roots_.push_back({roots[i], ops::cast(gradient, roots[i].dtype())});
    }
    for (const auto& [root, gradient] : roots_) {
      if (const Edge edge = edge_of(root); edge.node) visit(edge.node);
    }
    std::ranges::sort(order_, std::greater{}, [](const NodeState* s) { return s->node->sequence; });
  }

  /// Only nodes that lead to these tensors run; their gradients are kept, not accumulated. So are
  /// those of leaves that the pass around this one captures.
  void capture(const Tensors& inputs, const Pass* around = nullptr) {
    captures_leaves_ = true;
    if (around) {
      for (const auto& [leaf, gradient] : around->captured_leaves_) captured_leaves_[leaf];
    }
    for (const Tensor& input : inputs) {
      WEFT_CHECK(input.requires_grad(), "grad: input {} does not require a gradient", input);
      captured(input);
    }
    for (auto state = order_.rbegin(); state != order_.rend(); ++state) {  // oldest first
      (*state)->needed = std::ranges::any_of(
          (*state)->node->inputs, [&](const Edge& edge) { return leads_to_capture(edge); });
    }
  }

  void run() {
    // The sums of contributions, and hooks, are a part of the graph where one is asked for.
    const GradMode mode(options_.create_graph);
    count_leaf_uses();
    for (auto& [root, gradient] : roots_) send(edge_of(root), gradient);
    for (NodeState* state : order_) run_node(*state);
  }

  bool captures() const { return captures_leaves_; }

  /// Adds what a pass inside of this one has captured for it.
  void take_leaves(const Pass& inner) {
    for (auto& [leaf, sum] : captured_leaves_) keep(sum, inner.captured_leaves_.at(leaf));
  }

  /// What is captured of an input, undefined as long as nothing has arrived.
  Tensor& captured(const Tensor& input) {
    const Edge edge = edge_of(input);
    if (edge.node) return captured_outputs_[{edge.node.get(), edge.index}];
    return captured_leaves_[edge.leaf.get()];
  }

 private:
  void visit(const std::shared_ptr<Node>& root) {
    std::vector<std::shared_ptr<Node>> stack = {root};
    while (!stack.empty()) {
      const std::shared_ptr<Node> node = std::move(stack.back());
      stack.pop_back();
      const auto [entry, is_new] = states_.try_emplace(node.get());
      if (!is_new) continue;
      entry->second.node = node;
      entry->second.gradients.resize(node->outputs);
      order_.push_back(&entry->second);
      for (const Edge& edge : node->inputs) {
        if (edge.node) stack.push_back(edge.node);
      }
    }
  }

  bool leads_to_capture(const Edge& edge) const {
    if (edge.leaf.get() == unknown_leaves().autograd()) return !captured_leaves_.empty();
    if (edge.leaf) return captured_leaves_.contains(edge.leaf.get());
    return edge.node && (captured_outputs_.contains({edge.node.get(), edge.index}) ||
                         states_.at(edge.node.get()).needed);
  }

  static void keep(Tensor& sum, const Tensor& gradient) {
    if (gradient.defined()) sum = sum.defined() ? ops::add(sum, gradient) : gradient;
  }

  bool is_wanted(const Edge& edge) const {
    return edge.is_needed() && (!captures_leaves_ || leads_to_capture(edge));
  }

  void count_leaf_uses() {
    const auto count = [&](const std::shared_ptr<AutogradMeta>& leaf) {
      LeafState& state = leaves_[leaf.get()];
      state.meta = leaf;
      ++state.pending;
    };
    for (const auto& [root, gradient] : roots_) {
      if (const Edge edge = edge_of(root); edge.leaf) count(edge.leaf);
    }
    for (const NodeState* state : order_) {
      if (!state->needed) continue;
      for (const Edge& edge : state->node->inputs) {
        if (edge.leaf && is_wanted(edge)) count(edge.leaf);
      }
    }
  }

  /// Takes the gradient: a leaf that gets the only handle on it keeps it without a copy.
  void send(const Edge& edge, Tensor gradient) {
    if (edge.leaf) {
      LeafState& leaf = leaves_.at(edge.leaf.get());
      if (gradient.defined()) leaf.gradient.add(std::move(gradient), options_.create_graph);
      if (--leaf.pending == 0) finish_leaf(leaf);
    } else if (edge.node && gradient.defined()) {
      NodeState& state = states_.at(edge.node.get());
      state.gradients[edge.index].add(std::move(gradient), options_.create_graph);
    }
  }

  void finish_leaf(LeafState& leaf) {
    Tensor gradient = std::move(leaf.gradient.value);
    if (!gradient.defined()) return;
    AutogradMeta& meta = *leaf.meta;
    // Of copies: a hook may register others, for the next pass.
    for (const auto& hook : std::vector(meta.hooks)) replace(gradient, hook(gradient), "a leaf");
    if (captures_leaves_) {
      if (auto entry = captured_leaves_.find(&meta); entry != captured_leaves_.end()) {
        keep(entry->second, gradient);
      }
      return;
    }
    if (!meta.grad.defined()) {
      // The gradient may be shared with another leaf or with the caller; .grad() must not be.
      const bool keeps = gradient.is_unique() && gradient.is_contiguous();
      meta.grad = keeps ? gradient : ops::clone(gradient);
      assign_memory(meta.grad, MemoryKind::kGradients);
    } else if (options_.create_graph) {
      meta.grad = ops::add(meta.grad, gradient);
    } else {
      ops::add_(meta.grad, gradient);
    }
    for (const auto& hook : std::vector(meta.ready_hooks)) hook();
  }

  void run_node(NodeState& state) {
    Node& node = *state.node;
    Tensors gradients;
    bool any = false;
    const auto hooks = node.hooks;  // a copy, as of a leaf's
    for (size_t i = 0; i < state.gradients.size(); ++i) {
      Tensor& gradient = state.gradients[i].value;
      for (const auto& [output, hook] : hooks) {
        if (output != static_cast<int>(i) || !gradient.defined()) continue;
        replace(gradient, hook(gradient), node.name);
      }
      if (auto entry = captured_outputs_.find({&node, static_cast<int>(i)});
          entry != captured_outputs_.end()) {
        entry->second = gradient;
      }
      any = any || gradient.defined();
      gradients.push_back(std::move(gradient));
    }
    if (!state.needed) return;
    if (!any) {
      for (const Edge& edge : node.inputs) {
        if (is_wanted(edge)) send(edge, {});
      }
      return;
    }
    WEFT_CHECK(!node.released,
               "{}: backward was run through it already and its saved tensors were freed; pass "
               "retain_graph to the first backward",
               node.name);
    std::vector<bool> needs;
    for (const Edge& edge : node.inputs) needs.push_back(is_wanted(edge));
    const HookedNode hooked(node);
    Tensors results;
    {
      // A NaN made on the way is blamed on this node, below, not on the ops its gradient consists
      // of.
      const AnomalyMode unchecked(false);
      const RunningNode running_node(node);
      results =
          node.backward(Backward(state.node, std::move(gradients), needs, options_.create_graph));
    }
    WEFT_CHECK(results.size() == node.inputs.size(),
               "{}: its gradient function returned {} tensors for {} inputs", node.name,
               results.size(), node.inputs.size());
    for (size_t i = 0; i < results.size(); ++i) {
      WEFT_CHECK(!results[i].defined() || !needs[i] || results[i].shape() == node.inputs[i].shape,
                 "{}: its gradient function returned {} for input {}, expected the shape {}",
                 node.name, results[i], i, node.inputs[i].shape);
      if (needs[i] && results[i].defined() && results[i].dtype() != node.inputs[i].dtype) {
        results[i] = ops::cast(results[i], node.inputs[i].dtype);
      }
      WEFT_CHECK(!AnomalyMode::enabled() || !raw::holds_nan(results[i]),
                 "anomaly: the gradient of {} with respect to its input {}, {}, holds a NaN",
                 node.name, i, results[i]);
    }
    // A node that keeps nothing may run again: the cast of a weight serves several losses.
    if (!options_.retain_graph && !options_.create_graph && !node.saved.empty()) {
      node.released = true;
      node.saved.clear();
      node.backward = nullptr;
    }
    for (size_t i = 0; i < results.size(); ++i) {
      if (needs[i]) send(node.inputs[i], std::move(results[i]));
      results[i] = {};
    }
  }

  BackwardOptions options_;
  std::vector<std::pair<Tensor, Tensor>> roots_;
  std::unordered_map<Node*, NodeState> states_;
  std::vector<NodeState*> order_;  // of running: the latest node first
  std::unordered_map<const AutogradMeta*, LeafState> leaves_;
  bool captures_leaves_ = false;
  std::unordered_map<const AutogradMeta*, Tensor> captured_leaves_;
  std::map<std::pair<Node*, int>, Tensor> captured_outputs_;
};

void run_pass(Pass& pass) {
  require_stack_room("backward");
  ++running.depth;
  try {
    const ScopedValue innermost(running.innermost, &pass);
    pass.run();
  } catch (...) {
    if (--running.depth == 0) running.afterwards.clear();
    throw;
  }
  if (--running.depth > 0) return;
  const auto afterwards = std::exchange(running.afterwards, {});
  for (const auto& function : afterwards) function();
}

}  // namespace

void backward(const Tensor& root, const Tensor& gradient, const BackwardOptions& options) {
  Pass pass({root}, {gradient}, options);
  run_pass(pass);
}

bool in_backward() { return running.depth > 0; }
bool in_grad() { return running.innermost && running.innermost->captures(); }

void after_backward(std::function<void()> function) {
  WEFT_CHECK(running.depth > 0, "after_backward: no backward is running on this thread");
  running.afterwards.push_back(std::move(function));
}

Tensors grad(const Tensors& outputs, const Tensors& inputs, const Tensors& gradients,
             const BackwardOptions& options) {
  Pass pass(outputs, gradients, options);
  pass.capture(inputs);
  run_pass(pass);
  Tensors results;
  for (size_t i = 0; i < inputs.size(); ++i) {
    results.push_back(pass.captured(inputs[i]));
    WEFT_CHECK(results.back().defined() || options.allow_unused,
               "grad: input {}, {}, played no part in the outputs; allow_unused gives an undefined "
               "gradient",
               i, inputs[i]);
  }
  return results;
}

Tensors gradients_within_pass(const Tensor& root, const Tensor& gradient, const Tensors& inputs) {
  WEFT_CHECK(running.innermost, "gradients_within_pass: no backward is running on this thread");
  Pass& around = *running.innermost;
  Pass pass({root}, {gradient}, {});
  if (around.captures()) {
    Tensors wanted;
    std::ranges::copy_if(inputs, std::back_inserter(wanted),
                         [](const Tensor& x) { return x.defined() && x.requires_grad(); });
    pass.capture(wanted, &around);
  }
  run_pass(pass);
  if (around.captures()) around.take_leaves(pass);
  Tensors results;
  for (const Tensor& x : inputs) {
    if (!x.defined() || !x.requires_grad()) {
      results.emplace_back();
    } else {
      results.push_back(around.captures() ? pass.captured(x) : x.grad());
    }
  }
  return results;
}

const Tensor& unknown_leaves() {
  static const Tensor instance = Tensor::zeros({}).set_requires_grad(true);
  return instance;
}

void register_hook(const Tensor& tensor, std::function<Tensor(const Tensor&)> hook) {
  WEFT_CHECK(tensor.requires_grad(), "register_hook: {} does not require a gradient", tensor);
  if (const Edge edge = edge_of(tensor); edge.node) {
    edge.node->hooks.emplace_back(edge.index, std::move(hook));
  } else {
    edge.leaf->hooks.push_back(std::move(hook));
  }
}

void register_ready_hook(const Tensor& leaf, std::function<void()> hook) {
  WEFT_CHECK(leaf.requires_grad() && edge_of(leaf).leaf,
             "register_ready_hook: {} is not a leaf that requires a gradient", leaf);
  leaf.autograd()->ready_hooks.push_back(std::move(hook));
}

void retain_grad(const Tensor& tensor) {
  WEFT_CHECK(tensor.requires_grad(), "retain_grad: {} does not require a gradient", tensor);
  if (edge_of(tensor).leaf) return;
  const std::weak_ptr<AutogradMeta> meta = tensor.autograd_handle();
  register_hook(tensor, [meta](const Tensor& gradient) {
    const auto alive = meta.lock();
    if (!alive) return Tensor();
    alive->grad = alive->grad.defined() ? ops::add(alive->grad, gradient) : ops::clone(gradient);
    return Tensor();
  });
}

}  // namespace weft
