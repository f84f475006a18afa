#include "autograd/fused.h"

#include <algorithm>
#include <string>
#include <vector>

#include "autograd/backward.h"
#include "autograd/deferral.h"
#include "autograd/ops.h"
#include "autograd/replay.h"

namespace weft::ops {
namespace {

using Function = std::function<Tensor(const Tensors&)>;

/// The gradients of y, if it has a history, with respect to the inputs that need one.
Tensors gradients_of(const Tensor& y, const Tensors& inputs, const Backward& b) {
  Tensors wanted, gradients(inputs.size());
  if (!y.requires_grad()) return gradients;
  const auto needs = [&](size_t i) { return b.needs(static_cast<int>(i)); };
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (needs(i)) wanted.push_back(inputs[i]);
  }
  Tensors found =
      grad({y}, wanted, {b.dy()}, {.create_graph = b.create_graph(), .allow_unused = true});
  auto next = found.begin();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (needs(i)) gradients[i] = std::move(*next++);
  }
  return gradients;
}

/// Those of the function in recorded ops: each input as a view of its own, so that what leads from
/// one to another does not count.
Tensors recorded_gradients(const Function& function, const Backward& b, size_t count) {
  Tensors inputs;
  for (size_t i = 0; i < count; ++i) {
    const Tensor x = b.saved(static_cast<int>(i));
    inputs.push_back(x.defined() ? view(x, x.shape()) : x);
  }
  return gradients_of(function(inputs), inputs, b);
}

/// The same in one pass.
Tensors deferred_gradients(const Function& function, const Backward& b, size_t count) {
  const std::shared_ptr<Deferral> deferral = Deferral::make();
  const ScopedValue scope(deferral_in_force, deferral.get());
  Tensors gradients;
  {
    const GradMode recording(true);
    Tensors leaves;
    for (size_t i = 0; i < count; ++i) {
      leaves.push_back(b.saved(static_cast<int>(i)));
      if (!leaves[i].defined()) continue;
      leaves[i] = leaves[i].alias();
      if (b.needs(static_cast<int>(i))) leaves[i].set_requires_grad(true);
    }
    gradients = gradients_of(function(leaves), leaves, b);
  }
  deferral->finish(gradients);
  return gradients;
}

/// Throws Error naming an op that used a leaf which is none of the inputs: y has a history that
/// begins there, and the leaf's gradient would be lost.
[[noreturn]] void refuse_leaf(const Tensor& y) {
  Edge edge = edge_of(y);
  std::string user = "the function";
  Shape shape = y.shape();
  DType dtype = y.dtype();
  while (edge.node) {
    user = edge.node->name;
    const Input input = *std::ranges::find_if(edge.node->inputs, &Edge::is_needed);
    shape = input.shape, dtype = input.dtype;
    edge = input;
  }
  WEFT_FAIL("fused: {} uses {} {}, which requires a gradient and is not among the inputs", user,
            dtype, shape);
}

}  // namespace

Tensor fused(const Function& function, const Tensors& inputs) {
  if (deferral_in_force) return function(inputs);
  const Replay replay;
  Tensors results;
  {
    const std::shared_ptr<Deferral> deferral = Deferral::make();
    const ScopedValue scope(deferral_in_force, deferral.get());
    // Recording goes on, but of the inputs there is nothing to record.
    Tensors operands;
    for (const Tensor& x : inputs) operands.push_back(x.defined() ? x.alias() : x);
    results.push_back(function(operands));
    WEFT_CHECK(results[0].defined(), "fused: the function returned an undefined tensor");
    if (grad_enabled() && results[0].requires_grad()) refuse_leaf(results[0]);
    deferral->finish(results);
    results[0] = results[0].alias();  // of a view it makes a result of its own
  }
  if (results[0].storage().use_count() > 1) mark_shared(results[0]);
  return record("fused", inputs, results[0], inputs,
                [function, replay, count = inputs.size()](const Backward& b) -> Tensors {
                  return replay([&] {
                    return b.create_graph() ? recorded_gradients(function, b, count)
                                            : deferred_gradients(function, b, count);
                  });
                });
}

}  // namespace weft::ops
