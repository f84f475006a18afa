// Where a profile learns which differentiable op a kernel works for.
//
// An op computes first and records afterwards, so its forward pass is what happened since the one
// before it; a node's backward pass has a beginning and an end.
#pragma once

#include <atomic>
#include <string_view>

namespace weft {

/// Called, when set, by every op of every thread.
struct OpHook {
  virtual ~OpHook() = default;
  /// An op has its result; whether it is recorded for a backward pass makes no difference.
  virtual void computed(std::string_view op) = 0;
  /// Around the gradient function of a node and the delivery of its gradients.
  virtual void begin_backward(std::string_view op) = 0;
  virtual void end_backward() = 0;
};

inline std::atomic<OpHook*> the_op_hook{nullptr};

/// nullptr takes it away. The hook must live until then.
inline void set_op_hook(OpHook* hook) { the_op_hook = hook; }
inline OpHook* op_hook() { return the_op_hook.load(std::memory_order_relaxed); }

}  // namespace weft
