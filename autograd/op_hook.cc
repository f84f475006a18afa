#include "autograd/op_hook.h"

#include <atomic>

namespace weft {
namespace {

std::atomic<OpHook*> the_hook{nullptr};

}  // namespace

void set_op_hook(OpHook* hook) { the_hook = hook; }
OpHook* op_hook() { return the_hook.load(std::memory_order_relaxed); }

}  // namespace weft
