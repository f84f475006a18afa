// Fibers: one stack per emulated CUDA thread, and a switch between them that saves the callee-saved
// registers of the x86-64 System V ABI and nothing else. swapcontext, which makes a system call for
// the signal mask, is 30 times dearer.
#pragma once

#include <cstddef>
#include <vector>

namespace weft::simt {

class FiberStacks;

/// A suspended flow of control. The host thread that runs the fibers is one too.
struct Fiber {
  void* stack_pointer = nullptr;
  void* stack_bottom = nullptr;  // lowest address; null for the host thread's own stack
  size_t stack_bytes = 0;
  void* sanitizer_stack = nullptr;  // AddressSanitizer's fake stack of a suspended fiber
};

/// Suspends `from`, the running fiber, and resumes `to`. `from_ends` says that it never runs again.
void switch_fiber(Fiber& from, Fiber& to, bool from_ends = false);

/// Memory for stacks, reused from launch to launch. Below each lies a page without access, so that
/// an overflow is a fault at once.
class FiberStacks {
 public:
  FiberStacks() = default;
  ~FiberStacks();
  FiberStacks(const FiberStacks&) = delete;
  FiberStacks& operator=(const FiberStacks&) = delete;

  /// Makes fiber `index` start in `entry`, which must not return.
  void prepare(size_t index, Fiber& fiber, void (*entry)());

 private:
  std::vector<void*> stacks_;
};

/// To be called first thing by a fiber's entry.
void fiber_started();

}  // namespace weft::simt
