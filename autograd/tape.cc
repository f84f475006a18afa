#include "autograd/tape.h"

#include <atomic>
#include <cmath>

#include "autograd/op_hook.h"

namespace weft {
namespace {

thread_local bool recording = true;
thread_local bool checks_anomalies = false;

uint64_t next_sequence() {
  static std::atomic<uint64_t> sequence{0};
  return sequence.fetch_add(1, std::memory_order_relaxed) + 1;
}

Edge edge_of(const Tensor& input) {
  const AutogradMeta* meta = input.autograd();
  if (!meta || !input.requires_grad()) return {};
  if (meta->grad_fn) return {meta->grad_fn, meta->output_index, nullptr};
  return {nullptr, 0, input.autograd_handle()};
}

void check_for_nan(std::string_view name, const Tensors& outputs) {
  for (const Tensor& output : outputs) {
    if (!output.defined() || !is_floating(output.dtype())) continue;
    for (double value : output.to_vector()) {
      WEFT_CHECK(!std::isnan(value), "anomaly: {} made a NaN in its output {}", name, output);
    }
  }
}

std::shared_ptr<Node> make_node(std::string_view name, const Tensors& inputs,
                                const Tensors& outputs, const Tensors& saved,
                                BackwardFunction backward) {
  auto node = std::make_shared<Node>();
  node->name = name;
  node->sequence = next_sequence();
  node->backward = std::move(backward);
  node->outputs = static_cast<int>(outputs.size());
  for (const Tensor& input : inputs) node->edges.push_back(edge_of(input));
  for (const Tensor& output : outputs) {
    node->output_shapes.push_back(output.defined() ? output.shape() : Shape{});
    node->output_dtypes.push_back(output.defined() ? output.dtype() : DType::f32);
  }
  for (const Tensor& tensor : saved) {
    SavedTensor entry;
    if (tensor.defined()) {
      entry.data = tensor.alias();
      entry.version = tensor.version();
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (tensor.is_same(outputs[i])) entry.output = static_cast<int>(i);
      }
      if (entry.output < 0 && tensor.requires_grad()) entry.meta = tensor.autograd_handle();
    }
    node->saved.push_back(std::move(entry));
  }
  return node;
}

}  // namespace

// A long chain of nodes must not be freed by recursion: each node hands its edges to a queue that
// the first destructor on the stack empties.
Node::~Node() {
  thread_local std::vector<std::shared_ptr<Node>>* pending = nullptr;
  if (pending) {
    for (Edge& edge : edges) pending->push_back(std::move(edge.node));
    return;
  }
  std::vector<std::shared_ptr<Node>> queue;
  pending = &queue;
  for (Edge& edge : edges) queue.push_back(std::move(edge.node));
  saved.clear();
  backward = nullptr;
  while (!queue.empty()) {
    std::shared_ptr<Node> node = std::move(queue.back());
    queue.pop_back();
    node.reset();
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
    AutogradMeta& meta = tensor.make_autograd();
    meta.grad_fn = node_;
    meta.output_index = entry.output;
  } else {
    tensor.set_autograd_handle(entry.meta);
  }
  return tensor;
}

void Backward::require_no_graph() const {
  WEFT_CHECK(!create_graph_, "{}: gradients of its gradient are not available", node_->name);
}

bool is_recording(const Tensors& inputs) {
  if (!recording) return false;
  for (const Tensor& input : inputs) {
    if (input.defined() && input.requires_grad()) return true;
  }
  return false;
}

Tensors record(std::string_view name, const Tensors& inputs, Tensors outputs, const Tensors& saved,
               BackwardFunction backward) {
  if (OpHook* hook = op_hook()) [[unlikely]]
    hook->computed(name);
  if (checks_anomalies) check_for_nan(name, outputs);
  if (!is_recording(inputs)) return outputs;
  const std::shared_ptr<Node> node = make_node(name, inputs, outputs, saved, std::move(backward));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !is_floating(outputs[i].dtype())) continue;
    AutogradMeta& meta = outputs[i].make_autograd();
    meta.grad_fn = node;
    meta.output_index = static_cast<int>(i);
  }
  return outputs;
}

Tensor record(std::string_view name, const Tensors& inputs, Tensor output, const Tensors& saved,
              BackwardFunction backward) {
  if (!recording && !checks_anomalies) {
    if (OpHook* hook = op_hook()) [[unlikely]]
      hook->computed(name);
    return output;
  }
  return record(name, inputs, Tensors{std::move(output)}, saved, std::move(backward))[0];
}

void check_in_place(std::string_view name, const Tensor& target) {
  if (!recording || !target.autograd()) return;
  const AutogradMeta& meta = *target.autograd();
  WEFT_CHECK(!meta.requires_grad,
             "{}: {} is a leaf that requires a gradient; change it in place only under NoGrad",
             name, target);
  WEFT_CHECK(!meta.is_view || !meta.grad_fn,
             "{}: {} is a view with history; changing it in place would lose its base's gradient",
             name, target);
}

Tensor record_in_place(std::string_view name, const Tensors& inputs, Tensor target,
                       const Tensors& saved, BackwardFunction backward) {
  target.bump_version();
  if (OpHook* hook = op_hook()) [[unlikely]]
    hook->computed(name);
  if (!is_recording(inputs)) return target;
  check_in_place(name, target);
  WEFT_CHECK(!target.autograd() || !target.autograd()->is_view,
             "{}: {} is a view; writing a tracked value into it would lose its gradient", name,
             target);
  const std::shared_ptr<Node> node = make_node(name, inputs, {target}, saved, std::move(backward));
  AutogradMeta& meta = target.make_autograd();
  meta.grad_fn = node;
  meta.output_index = 0;
  return target;
}

bool grad_enabled() { return recording; }

GradMode::GradMode(bool enabled) : previous_(recording) { recording = enabled; }
GradMode::~GradMode() { recording = previous_; }

AnomalyMode::AnomalyMode(bool enabled) : previous_(checks_anomalies) { checks_anomalies = enabled; }
AnomalyMode::~AnomalyMode() { checks_anomalies = previous_; }
bool AnomalyMode::enabled() { return checks_anomalies; }

Tensor detach(const Tensor& x) { return x.alias(); }

}  // namespace weft
