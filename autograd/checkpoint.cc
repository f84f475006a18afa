#include "autograd/checkpoint.h"

#include "autograd/backward.h"
#include "autograd/replay.h"

namespace weft {

Tensor checkpoint(const std::function<Tensor(const Tensors&)>& function, const Tensors& inputs) {
  if (!grad_enabled()) return function(inputs);
  const Replay replay;
  Tensor output;
  {
    NoGrad guard;
    output = function(inputs);
    WEFT_CHECK(output.defined(), "checkpoint: the function returned an undefined tensor");
    // An input handed through must not carry its own history out.
    output = output.alias();
  }
  // Parameters used inside are not inputs of the node; a node is recorded when there may be any.
  Tensors all = inputs;
  all.push_back(unknown_leaves());
  // Of an input that is handed through, or of another's tensor, a change in place would go unseen.
  if (output.storage().use_count() > 1) mark_shared(output);
  return record("checkpoint", all, output, inputs,
                [=, count = inputs.size()](const Backward& b) -> Tensors {
                  b.require_no_graph();
                  Tensors leaves;
                  for (size_t i = 0; i < count; ++i) {
                    leaves.push_back(b.saved(static_cast<int>(i)));
                    if (!leaves[i].defined()) continue;
                    leaves[i] = leaves[i].alias();
                    if (b.needs(static_cast<int>(i))) leaves[i].set_requires_grad(true);
                  }
                  Tensors gradients(count);
                  replay([&] {
                    const GradMode recording(true);
                    const Tensor again = function(leaves);
                    if (!again.requires_grad()) return;
                    if (recomputed_check()) recomputed_check()(again);
                    gradients = gradients_within_pass(again, b.dy(), leaves);
                  });
                  gradients.emplace_back();
                  return gradients;
                });
}

}  // namespace weft
