// The tape: how an operation records its gradient.
//
// An op computes its result with kernels, then records, in the same function, how gradients flow
// back:
//
//   Tensor exp(const Tensor& x) {
//     Tensor y = ...;                                   // forward
//     return record("exp", {x}, y, {y}, [](const Backward& b) -> Tensors {
//       return {ops::mul(b.dy(), b.saved(0))};          // one gradient for each input
//     });
//   }
// User-defined functions are written the same way.
//
// The gradient function runs with recording off, unless a graph of the gradient was asked for
// (create_graph): built from ops:: it is then differentiable itself. One that calls kernels
// directly asks b.create_graph() and takes an unfused path, or calls b.require_no_graph().
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/scoped_value.h"
#include "core/tensor.h"

namespace weft {

using Tensors = std::vector<Tensor>;
class Backward;
using BackwardFunction = std::function<Tensors(const Backward&)>;

/// Where a gradient goes: output `index` of a node, or a leaf. Neither: nobody needs it.
struct Edge {
  std::shared_ptr<Node> node;
  int index = 0;
  std::shared_ptr<AutogradMeta> leaf;

  bool is_needed() const { return node || leaf; }
};
/// Whether x is neither what a recorded op has made nor a view.
bool is_leaf(const Tensor& x);
/// Where the gradient of x goes; of a view, after all that was changed in place since it was taken.
Edge edge_of(const Tensor& x);

/// What a node computed from: where its gradient goes, and what that is like.
struct Input : Edge {
  Shape shape;
  DType dtype;
};

/// A tensor kept for the backward pass, with the version it had.
struct SavedTensor {
  Tensor data;      // without history
  Edge edge;        // the history it had, of an input
  int output = -1;  // >= 0: it is the node's own output
  uint64_t version = 0;
};

/// A recorded operation.
class Node {
 public:
  Node() = default;
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  std::string name;
  uint64_t sequence = 0;  // position on the tape: later nodes run first
  std::vector<Input> inputs;
  std::vector<SavedTensor> saved;
  BackwardFunction backward;
  int outputs = 1;
  bool released = false;  // its saved tensors were freed
  std::vector<std::pair<int, std::function<Tensor(const Tensor&)>>> hooks;  // (output, hook)
};

/// What a gradient function sees.
class Backward {
 public:
  Backward(std::shared_ptr<Node> node, Tensors gradients, std::vector<bool> needs,
           bool create_graph)
      : node_(std::move(node)),
        gradients_(std::move(gradients)),
        needs_(std::move(needs)),
        create_graph_(create_graph) {}

  /// The gradient of output i; undefined when that output did not contribute (never with one
  /// output).
  const Tensor& dy(int i = 0) const { return gradients_[i]; }
  /// Saved tensor i; throws Error naming the op and the tensor when it was changed in place since.
  Tensor saved(int i) const;
  /// True when somebody needs the gradient of input i; others may be returned undefined.
  bool needs(int i) const { return needs_[i]; }
  /// True when the gradient's own graph is being recorded.
  bool create_graph() const { return create_graph_; }
  /// Throws Error naming the op when a graph of its gradient was asked for.
  void require_no_graph() const;

 private:
  std::shared_ptr<Node> node_;
  Tensors gradients_;
  std::vector<bool> needs_;
  bool create_graph_;
};

/// Records an operation and returns its output, which now carries the history. Does nothing when
/// recording is off or no input requires a gradient. The gradient function returns a tensor per
/// input, of its shape or, where none is needed, undefined; one of another dtype is cast.
Tensor record(std::string_view name, const Tensors& inputs, Tensor output, const Tensors& saved,
              BackwardFunction backward);
/// The same for several outputs.
Tensors record(std::string_view name, const Tensors& inputs, Tensors outputs, const Tensors& saved,
               BackwardFunction backward);
/// The same for an op whose output shares the elements of x: in-place ops on either then show in
/// the gradients of both. A view taken while recording is off has no history: using it after a
/// recorded change of the elements, or changing it so that gradients would be lost, throws Error.
Tensor record_view(std::string_view name, const Tensor& x, Tensor output,
                   BackwardFunction backward);
/// The same for an op that has changed `target`, one of its inputs, in place: counts the change and
/// puts the node between the target and its past. The op must have called check_in_place before.
Tensor record_in_place(std::string_view name, const Tensors& inputs, Tensor target,
                       const Tensors& saved, BackwardFunction backward);
/// Throws Error when changing `target`, one of the inputs, in place would lose gradients: a leaf
/// that requires one, a view of such a leaf, a view taken while recording was off, a view of a
/// tensor whose elements share memory.
void check_in_place(std::string_view name, const Tensors& inputs, const Tensor& target);

/// Of an op's output whose elements are others', too, which the tape does not see: changing it in
/// place while ops are recorded, and using it after they were changed so, throws Error.
void mark_shared(const Tensor& output);

/// True when an op on these inputs would be recorded.
bool is_recording(const Tensors& inputs);

/// True while operations are recorded on this thread (the default).
bool grad_enabled();

/// Turns recording off, or on, on this thread for as long as it lives.
class GradMode : ScopedValue<bool> {
 public:
  explicit GradMode(bool enabled);
};

/// `NoGrad guard;` until the end of the block nothing is recorded.
struct NoGrad : GradMode {
  NoGrad() : GradMode(false) {}
};

/// Anomaly mode: every recorded op, and every gradient function, is checked for NaN, and the first
/// one to make one is named in an Error. Slow.
class AnomalyMode : ScopedValue<bool> {
 public:
  explicit AnomalyMode(bool enabled = true);
  static bool enabled();
};

/// The same data without history.
Tensor detach(const Tensor& x);

}  // namespace weft
