// Running the tape backwards.
#pragma once

#include "autograd/tape.h"

namespace weft {

struct BackwardOptions {
  bool retain_graph = false;  // keep saved tensors for another backward
  bool create_graph = false;  // record the gradient computation itself; implies retain_graph
  bool allow_unused = false;  // grad(): an input that played no part gets an undefined gradient
};

/// Adds d(root)/d(leaf) to .grad() of every leaf that requires a gradient. `gradient` is
/// d(loss)/d(root), by default 1, for which root must have one element. Nodes run in the reverse
/// order of recording, so sums of gradients are formed in one order always. Throws Error when root
/// has no history or its graph was already freed.
void backward(const Tensor& root, const Tensor& gradient = {}, const BackwardOptions& options = {});

/// The gradients of sum_i <outputs[i], gradients[i]> with respect to the inputs, which may be
/// leaves or intermediate results. No .grad() is touched and no ready hook runs.
Tensors grad(const Tensors& outputs, const Tensors& inputs, const Tensors& gradients = {},
             const BackwardOptions& options = {});

/// For a gradient function that runs a tape of its own: the gradients of `inputs`, leaves of that
/// tape; undefined for those without one. Its other leaves are part of the pass at hand: backward()
/// adds to their .grad, grad() to what was asked for.
Tensors gradients_within_pass(const Tensor& root, const Tensor& gradient, const Tensors& inputs);
/// Stands among the inputs of such a node for leaves that are not known before.
const Tensor& unknown_leaves();

/// Calls hook(gradient) when backward has the gradient of this tensor; a defined result replaces
/// it.
void register_hook(const Tensor& tensor, std::function<Tensor(const Tensor&)> hook);
/// Calls hook() once per backward, when a leaf's .grad() is complete. A hook that holds the leaf
/// itself keeps it alive for ever.
void register_ready_hook(const Tensor& leaf, std::function<void()> hook);
/// To be called from a hook: runs function() once, on this thread, when the outermost backward() or
/// grad() that is running there is over. Not when that fails. Functions run in the order of the
/// calls.
void after_backward(std::function<void()> function);
/// Whether this thread is inside of backward() or grad(), where functions may be run again.
bool in_backward();
/// Whether the pass at hand, the innermost on this thread, is one of grad(): it changes no .grad.
bool in_grad();
/// Keeps the gradient of an intermediate result in its .grad().
void retain_grad(const Tensor& tensor);

}  // namespace weft
