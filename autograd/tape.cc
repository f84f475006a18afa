#include "autograd/tape.h"

#include <atomic>
#include <span>

#include "autograd/deferral.h"
#include "autograd/op_hook.h"
#include "autograd/ops.h"
#include "autograd/raw.h"
#include "core/view.h"

namespace weft {
namespace {

thread_local bool recording = true;
thread_local bool checks_anomalies = false;

void set_history(const Tensor& tensor, std::shared_ptr<Node> node, int output) {
  AutogradMeta& meta = tensor.make_autograd();
  meta.grad_fn = std::move(node);
  meta.output_index = output;
}

bool is_leaf_with_gradient(const Tensor& x) { return x.autograd() && x.autograd()->requires_grad; }

void tell_hook(std::string_view name) {
  if (OpHook* hook = op_hook()) [[unlikely]]
    hook->computed(name);
}

std::shared_ptr<Node> make_node(std::string_view name, std::span<const Tensor> inputs,
                                std::span<const Tensor> outputs, const Tensors& saved,
                                BackwardFunction backward) {
  auto node = std::make_shared<Node>();
  node->name = name;
  node->backward = std::move(backward);
  node->outputs = static_cast<int>(outputs.size());
  node->inputs.reserve(inputs.size());
  for (const Tensor& input : inputs) {
    const bool is_there = input.defined();
    node->inputs.push_back({edge_of(input), is_there ? input.shape() : Shape(),
                            is_there ? input.dtype() : DType::f32});
  }
  node->saved.reserve(saved.size());
  for (const Tensor& tensor : saved) {
    SavedTensor entry;
    if (tensor.defined()) {
      entry.data = tensor.alias();
      entry.version = tensor.version();
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (tensor.is_same(outputs[i])) entry.output = static_cast<int>(i);
      }
      if (entry.output < 0) entry.edge = edge_of(tensor);
    }
    node->saved.push_back(std::move(entry));
  }
  // Above those of nodes that edges of views have just recorded.
  static std::atomic<uint64_t> sequence{0};
  node->sequence = sequence.fetch_add(1, std::memory_order_relaxed) + 1;
  return node;
}

/// How a view lies in its base; the offset counts from the base's first element.
struct Window {
  Shape shape;
  Strides strides;
  int64_t offset;
};

/// A tensor's shape and strides without its elements.
struct Layout {
  Shape shape;
  Strides strides;

  Tensor zeros(DType dtype, Device device) const {
    const Tensor memory = Tensor::zeros({span_of(shape, strides).size}, dtype, device);
    return Tensor::view_of(memory.storage(), shape, strides, 0, dtype);
  }
  /// x, or a copy of it, in this layout.
  Tensor hold(const Tensor& x) const { return x.strides() == strides ? x : copy(x); }
  Tensor copy(const Tensor& x) const {
    Tensor y = zeros(x.dtype(), x.device());
    return ops::copy_(y, x);
  }
};

/// The part of x, which has the base's layout, that a view of the base shows. Recorded as a view.
Tensor look_through(const Window& window, const Tensor& x) {
  const Tensor y = Tensor::view_of(x.storage(), window.shape, window.strides,
                                   x.offset() + window.offset, x.dtype());
  return record_view("as_strided", x, y,
                     [window, base = Layout{x.shape(), x.strides()}](const Backward& b) -> Tensors {
                       // Elements that the view repeats, with a stride of 0, get the sum.
                       Window once = window;
                       for (int d = 0; d < once.shape.size(); ++d) {
                         if (once.strides[d] == 0 && once.shape[d] > 1) once.shape[d] = 1;
                       }
                       Tensor dx = base.zeros(b.dy().dtype(), b.dy().device());
                       Tensor part = look_through(once, dx);
                       ops::copy_(part, ops::sum_to(b.dy(), once.shape));
                       return {dx};
                     });
}

Window window_of(const Tensor& view, const Tensor& base) {
  return {view.shape(), view.strides(), view.offset() - base.offset()};
}

/// The gradient of (base, written) -> base with `written` in the place of one of its views.
BackwardFunction overwrite_backward(const Tensor& base, const Tensor& view) {
  return [window = window_of(view, base),
          layout = Layout{base.shape(), base.strides()}](const Backward& b) -> Tensors {
    Tensor dbase, dwritten;
    if (b.needs(0)) {
      dbase = layout.copy(b.dy());
      Tensor part = look_through(window, dbase);
      ops::zero_(part);
    }
    if (b.needs(1)) dwritten = look_through(window, layout.hold(b.dy()));
    return {dbase, dwritten};
  };
}

}  // namespace

bool is_leaf(const Tensor& x) {
  const AutogradMeta* const meta = x.autograd();
  return !x.unrecorded_since() && (!meta || (!meta->grad_fn && !meta->view));
}

Edge edge_of(const Tensor& x) {
  AutogradMeta* const meta = x.autograd();
  if (!meta || !x.requires_grad()) return {};
  if (meta->view) {
    const auto& [base, base_grad_fn] = *meta->view;
    if (base.autograd() && base.autograd()->grad_fn != base_grad_fn) {
      const GradMode mode(true);
      const Tensor again = look_through(window_of(x, base), base);
      set_history(x, again.autograd()->grad_fn, again.autograd()->output_index);
      meta->view->base_grad_fn = base.autograd()->grad_fn;
    }
  }
  if (meta->grad_fn) return {meta->grad_fn, meta->output_index, nullptr};
  return {nullptr, 0, x.autograd_handle()};
}

// A node's inputs, saved tensors and gradient function may hold the last handle on another node,
// and that on a third, a million times over. So that none is freed from within another, each node
// hands what it holds to a queue, which the first destructor on the stack empties.
Node::~Node() {
  struct Remains {
    std::vector<Input> inputs;
    std::vector<SavedTensor> saved;
    BackwardFunction backward;
    decltype(Node::hooks) hooks;
  };
  thread_local std::vector<Remains>* pending = nullptr;
  Remains own{std::move(inputs), std::move(saved), std::move(backward), std::move(hooks)};
  if (pending) {
    pending->push_back(std::move(own));
    return;
  }
  std::vector<Remains> queue;
  queue.push_back(std::move(own));
  pending = &queue;
  while (!queue.empty()) {
    const Remains freed = std::move(queue.back());
    queue.pop_back();
  }
  pending = nullptr;
}

Tensor Backward::saved(int i) const {
  const SavedTensor& entry = node_->saved[i];
  if (!entry.data.defined()) return {};
  WEFT_CHECK(
      entry.data.version() == entry.version,
      "{}: a tensor needed for its gradient, {}{}, was changed in place (it is at version {}, was "
      "saved at version {})",
      node_->name, entry.output >= 0 ? "its output " : "", entry.data, entry.data.version(),
      entry.version);
  if (!create_graph_) return entry.data;
  Tensor tensor = entry.data.alias();
  if (entry.output >= 0) {
    set_history(tensor, node_, entry.output);
  } else if (entry.edge.node) {
    set_history(tensor, entry.edge.node, entry.edge.index);
  } else {
    tensor.autograd_handle() = entry.edge.leaf;
  }
  return tensor;
}

void Backward::require_no_graph() const {
  WEFT_CHECK(!create_graph_, "{}: gradients of its gradient are not available", node_->name);
}

namespace {

bool records(std::span<const Tensor> inputs) {
  if (!recording) return false;
  bool any = false;
  for (const Tensor& input : inputs) {
    if (!input.defined()) continue;
    WEFT_CHECK(
        !input.unrecorded_since() ||
            *input.unrecorded_since() == input.storage()->recorded_changes(),
        "a view taken while nothing was recorded, {}, is used after a recorded op changed its "
        "elements in place: its gradient would be lost. Take it again",
        input);
    any = any || input.requires_grad();
  }
  return any;
}

/// Tells who listens of the outputs of an op, and gives them their history where it is recorded.
void record_outputs(std::string_view name, std::span<const Tensor> inputs,
                    std::span<const Tensor> outputs, const Tensors& saved,
                    BackwardFunction backward) {
  tell_hook(name);
  for (const Tensor& output : outputs) {
    WEFT_CHECK(!checks_anomalies || !raw::holds_nan(output),
               "anomaly: {} made a NaN in its output {}", name, output);
  }
  if (!records(inputs)) return;
  const std::shared_ptr<Node> node = make_node(name, inputs, outputs, saved, std::move(backward));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !is_floating(outputs[i].dtype())) continue;
    set_history(outputs[i], node, static_cast<int>(i));
  }
}

std::span<const Tensor> just(const Tensor& x) { return {&x, 1}; }

}  // namespace

bool is_recording(const Tensors& inputs) { return records(inputs); }

Tensors record(std::string_view name, const Tensors& inputs, Tensors outputs, const Tensors& saved,
               BackwardFunction backward) {
  record_outputs(name, inputs, outputs, saved, std::move(backward));
  return outputs;
}

Tensor record(std::string_view name, const Tensors& inputs, Tensor output, const Tensors& saved,
              BackwardFunction backward) {
  record_outputs(name, inputs, just(output), saved, std::move(backward));
  return output;
}

Tensor record_view(std::string_view name, const Tensor& x, Tensor y, BackwardFunction backward) {
  record_outputs(name, just(x), just(y), {}, std::move(backward));
  if (!recording || (x.unrecorded_since() && !is_leaf_with_gradient(x))) {
    y.unrecorded_since() = x.unrecorded_since().value_or(x.storage()->recorded_changes());
    return y;
  }
  const Tensor& base = x.autograd() && x.autograd()->view ? x.autograd()->view->base : x;
  y.make_autograd().view = {base, base.autograd() ? base.autograd()->grad_fn : nullptr};
  return y;
}

void mark_shared(const Tensor& output) {
  output.unrecorded_since() = output.storage()->recorded_changes();
}

void check_in_place(std::string_view name, const Tensors& inputs, const Tensor& target) {
  if (deferral_in_force) [[unlikely]]
    deferral_in_force->flush();
  if (!is_recording(inputs) || !is_floating(target.dtype())) return;
  WEFT_CHECK(!is_leaf_with_gradient(target),
             "{}: {} is a leaf that requires a gradient; change it in place only under NoGrad",
             name, target);
  WEFT_CHECK(!target.unrecorded_since(),
             "{}: {} is a view taken while nothing was recorded; changing it in place would lose "
             "its base's gradient",
             name, target);
  if (!target.autograd() || !target.autograd()->view) return;
  const Tensor& base = target.autograd()->view->base;
  WEFT_CHECK(!is_leaf_with_gradient(base),
             "{}: {} is a view of a leaf that requires a gradient; change it in place only under "
             "NoGrad",
             name, target);
  WEFT_CHECK(!view::overlaps_itself(base),
             "{}: {} is a view of a tensor with strides {}, several of whose elements share "
             "memory; clone() it first",
             name, target, base.strides());
}

Tensor record_in_place(std::string_view name, const Tensors& inputs, Tensor target,
                       const Tensors& saved, BackwardFunction backward) {
  target.bump_version();
  tell_hook(name);
  if (!is_recording(inputs) || !is_floating(target.dtype())) return target;
  check_in_place(name, inputs, target);
  target.storage()->count_recorded_change();
  const std::shared_ptr<Node> node =
      make_node(name, inputs, just(target), saved, std::move(backward));
  if (target.autograd() && target.autograd()->view) {
    Tensor written = target.alias();
    set_history(written, node, 0);
    const Tensor& base = target.autograd()->view->base;
    const Tensor both[] = {base, written};
    set_history(base,
                make_node("overwrite", both, just(base), {}, overwrite_backward(base, target)), 0);
  } else {
    set_history(target, node, 0);
  }
  return target;
}

bool grad_enabled() { return recording; }

GradMode::GradMode(bool enabled) : ScopedValue(recording, enabled) {}
AnomalyMode::AnomalyMode(bool enabled) : ScopedValue(checks_anomalies, enabled) {}
bool AnomalyMode::enabled() { return checks_anomalies; }

Tensor detach(const Tensor& x) { return x.alias(); }

}  // namespace weft
