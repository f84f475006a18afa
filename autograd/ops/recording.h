// Whether an op need be recorded, asked before what record() takes is put together: lists of
// tensors and a closure, which cost a small op more than its kernel.
#pragma once

#include "autograd/op_hook.h"
#include "autograd/tape.h"

namespace weft {

/// False where record(), or record_view(), of an op on these inputs would do nothing with its list
/// of saved tensors and its gradient function.
template <class... T>
bool is_observed(const T&... inputs) {
  if (op_hook() || AnomalyMode::enabled()) return true;
  const auto has_history = [](const Tensor& x) {
    return x.defined() && ((x.autograd() && x.requires_grad()) || x.unrecorded_since());
  };
  return grad_enabled() && (has_history(inputs) || ...);
}

}  // namespace weft
